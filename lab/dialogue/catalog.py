"""Encoders, head, task and data set of dialogue."""

from holdfast.catalog.entry import EncoderEntry, Entry, Part, TaskEntry

TASK = "respond"
_MEMORY = "each with a memory bank"


def _encoder(cell: str, about: str) -> EncoderEntry:
    return EncoderEntry(
        "lab.dialogue.encoder:Dialogue.build", about, fixed={"cell": cell}, takes="text", growable=True, tasks=(TASK,),
        learned=("memory",),
    )  # fmt: skip


GRU = _encoder("gru", f"GRU encoder and attention decoder for dialogue, {_MEMORY} (Asghar et al., 2020)")
LSTM = _encoder("lstm", f"LSTM encoder and attention decoder for dialogue, {_MEMORY}")
DATASET = Entry(
    "lab.dialogue.data:read_dialogue",
    "responses in films (Danescu-Niculescu-Mizil & Lee, 2011), then in Ubuntu support chats (Lowe et al., 2015)",
)
HEADS = {
    "none": Part("lab.dialogue.head:NoHead.build", "no head, for encoders that generate the output", tasks=(TASK,)),
}
TASKS = {
    TASK: TaskEntry(
        "lab.dialogue.respond:Respond", "a response to every message, trained on message-response pairs",
        defaults={"encoder": "dialogue-gru", "head": "none"}, card="A dialogue model", hub={"text": "text-generation"}),
}  # fmt: skip
