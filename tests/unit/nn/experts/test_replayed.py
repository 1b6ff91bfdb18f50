"""A layer whose passes are recorded: what a layer without recordings gives, whatever happens between there and back.

Without a GPU a recording is a function that is called again and leaves its results where the first call left them.
"""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import time
import weakref

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from holdfast.core.tape import tape
from holdfast.nn import cuda_graphs as recorded
from holdfast.nn.cuda_graphs import WARMUP_PASSES, WARMUP_PREDICTIONS, RepeatedPass, CapturedPass
from holdfast.nn.experts import fast
from holdfast.nn.experts.layer import SparseMoE, exclude_padding
from holdfast.nn.experts.fast import graphs_of
from holdfast.nn.experts.fused import Config, Saved, Weights

WIDTH, HIDDEN, TOKENS = 24, 40, 10
COMPILERS = pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.gpu)])


def flat(made):
    """The tensors of what a function leaves, in tuples too."""
    for each in made:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, tuple):
            yield from flat(each)


class Called:
    """In the place of a graph: the function on the same memory, its results over those of the first time."""

    def __init__(self, function, inputs, outputs) -> None:
        self.function, self.inputs, self.outputs = function, inputs, outputs

    @torch.no_grad()
    def replay(self) -> None:
        for old, new in zip(flat(self.outputs), flat(self.function(*self.inputs)), strict=True):
            if old.data_ptr() != new.data_ptr():
                old.copy_(new)


@pytest.fixture
def device(by_narrow_kernels, monkeypatch) -> torch.device:
    if by_narrow_kernels.type == "cpu":

        @torch.no_grad()
        def record(function, given, _):
            inputs = [each.detach().clone() for each in given]
            outputs = tuple(function(*inputs))
            return CapturedPass(inputs, outputs, Called(function, inputs, outputs))

        monkeypatch.setattr(recorded, "capture", record)
        monkeypatch.setattr(recorded, "_memory_pool", lambda _: None)
        monkeypatch.setattr(fast, "can_capture", lambda _: True)
        monkeypatch.setattr(fast, "grouped_mm_is_asynchronous", lambda _: True)
    return by_narrow_kernels


@pytest.fixture
def plain(monkeypatch):
    """Makes layers that never record."""

    def made(layer: SparseMoE) -> SparseMoE:
        other = copy.deepcopy(layer)
        done = graphs_of(other.up_proj)
        for each in (done.training, done.prediction):
            monkeypatch.setattr(each, "find", lambda *_: None)
        return other

    return made


def layer_on(device, **options) -> SparseMoE:
    torch.manual_seed(0)
    return SparseMoE(WIDTH, HIDDEN, nn.GELU(), inner=32, **options).to(device).train()


def tokens(device, seed=0, count=TOKENS):
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(2, count, WIDTH, generator=chance).to(device).requires_grad_()


def there(layer, x, seed=0):
    """The output and all that was told."""
    torch.manual_seed(seed)
    with tape() as side, torch.autocast(x.device.type, torch.bfloat16):
        out = layer(x)
    return out, {name: tuple(values) for name, values in side.items()}


def loss_of(out, side):
    return (out.float() - 1).square().mean() + sum(side.get("loss/experts", ()))


def back(layer, x, found, **how):
    return torch.autograd.grad(loss_of(*found), (x, *layer.parameters()), **how)


def pass_by(layer, x, seed=0):
    found = there(layer, x, seed)
    return found, back(layer, x, found)


def settle(layer, device):
    """Until its passes are recorded."""
    for seed in range(WARMUP_PASSES + 1):
        pass_by(layer, tokens(device, seed))
    assert graphs_of(layer.up_proj).training.passes is not None


def alike(found, wanted, device):
    """Exactly so on a CPU; on a GPU products may be taken in another order."""
    for a, b in zip(flat(found), flat(wanted), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if device.type == "cpu" or not a.is_floating_point():
            assert torch.equal(a, b)
        else:
            assert (a - b).abs().max() <= 0.02 * b.abs().max().clamp_min(1e-3)


def everything(found, grads=()):
    out, side = found
    return out.detach(), *(tuple(each.detach() for each in side[name]) for name in sorted(side)), tuple(grads)


@pytest.mark.parametrize("options", [{}, {"top": 1}, {"noise": 0.0}, {"balance": 0.0}, {"form": "tutel"}])
def test_step_after_step_it_learns_what_a_layer_without_recordings_learns(device, plain, options):
    layer = layer_on(device, **options)
    other = plain(layer)
    both = [(each, torch.optim.SGD(each.parameters(), lr=0.1)) for each in (layer, other)]
    for seed in range(WARMUP_PASSES + 4):
        results = []
        for each, descent in both:
            x = tokens(device, seed)
            found, grads = pass_by(each, x, seed)
            for parameter, grad in zip(each.parameters(), grads[1:], strict=True):
                parameter.grad = grad
            descent.step()
            results.append(everything(found, grads))
        alike(*results, device)
    assert graphs_of(layer.up_proj).training.passes.replays == 4
    assert graphs_of(other.up_proj).training.passes is None


def test_what_was_told_and_given_stays_when_the_layer_goes_on(device):
    layer = layer_on(device)
    settle(layer, device)
    found, grads = pass_by(layer, tokens(device, 7), 7)
    kept = everything(found, grads)
    before = [each.clone() for each in flat(kept)]
    del found
    pass_by(layer, tokens(device, 8), 8)
    assert graphs_of(layer.up_proj).training.passes.replays == 3
    assert all(torch.equal(a, b) for a, b in zip(flat(kept), before, strict=True))


def test_two_passes_before_either_goes_back(device, plain):
    layer = layer_on(device)
    settle(layer, device)
    other, replays = plain(layer), graphs_of(layer.up_proj).training.passes.replays
    results = []
    for each in (layer, other):
        xs = [tokens(device, seed) for seed in (7, 8)]
        founds = [there(each, x, seed) for seed, x in zip((7, 8), xs, strict=True)]
        results.append(tuple(everything(f, back(each, x, f)) for f, x in zip(founds, xs, strict=True)))
    alike(*results, device)
    assert graphs_of(layer.up_proj).training.passes.replays == replays + 1  # the second went another way
    del founds
    pass_by(layer, tokens(device))
    assert graphs_of(layer.up_proj).training.passes.replays == replays + 2


def test_it_goes_back_twice(device):
    layer, x = layer_on(device), tokens(device, 5)
    settle(layer, device)
    found = there(layer, x)
    first = back(layer, x, found, retain_graph=True)
    alike(back(layer, x, found), first, device)


def test_a_loop_that_holds_its_last_loss_is_replayed_too(device):
    layer = layer_on(device)
    for seed in range(WARMUP_PASSES + 5):
        found = there(layer, tokens(device, seed), seed)
        loss = loss_of(*found)
        loss.backward()
    assert graphs_of(layer.up_proj).training.passes.replays == 5


def test_where_others_keep_what_is_saved_two_passes_go_back(device, plain):
    layer = layer_on(device)
    settle(layer, device)
    results = []
    for each in (layer, plain(layer)):
        xs = [tokens(device, seed) for seed in (7, 8)]
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda kept: kept):
            founds = [there(each, x, seed) for seed, x in zip((7, 8), xs, strict=True)]
        results.append(tuple(back(each, x, f) for f, x in zip(founds, xs, strict=True)))
    alike(*results, device)


def test_checkpoints_go_the_same_way_twice(device, plain):
    layer = layer_on(device, noise=0.0)
    results = []
    for each in (layer, plain(layer)):
        for seed in range(WARMUP_PASSES + 2):
            x = tokens(device, seed)
            with torch.autocast(device.type, torch.bfloat16):
                out = torch.utils.checkpoint.checkpoint(each, x, use_reentrant=False)
            results.append(torch.autograd.grad(out.float().square().mean(), (x, *each.parameters()), allow_unused=True))
    half = len(results) // 2
    alike(tuple(results[:half]), tuple(results[half:]), device)


def test_weights_that_get_other_memory_before_the_way_back(device, plain):
    layer = layer_on(device)
    settle(layer, device)
    results = []
    for each in (layer, plain(layer)):
        x = tokens(device, 5)
        found = there(each, x, 5)
        old = each.up_proj_bias.data
        each.up_proj_bias.data = old.clone()
        old.fill_(7.0)
        results.append(back(each, x, found))
    alike(*results, device)


def test_a_loss_that_reaches_nothing_that_learns(device):
    layer = layer_on(device)
    layer.router.requires_grad_(False)
    x = tokens(device).detach()
    for seed in range(WARMUP_PASSES + 2):
        there(layer, x, seed)[0].float().sum().backward()
    layer.zero_grad()
    _, side = there(layer, x)
    assert graphs_of(layer.up_proj).training.passes.replays == 3
    side["loss/experts"][0].backward()
    assert all(p.grad is None for p in layer.parameters())


@pytest.mark.parametrize(("refused", "tried"), [(1, 1), (2, 3)])  # there, once for all; back, and the next time again
def test_without_memory_for_a_recording_it_goes_on_without(device, plain, monkeypatch, refused, tried):
    layer = layer_on(device)
    real, asked = recorded.capture, []

    def record(*args):
        asked.append(args)
        if len(asked) == refused:
            raise torch.OutOfMemoryError("none left")
        return real(*args)

    monkeypatch.setattr(recorded, "capture", record)
    for seed in range(WARMUP_PASSES + 3):
        x = tokens(device, seed)
        found = pass_by(layer, x, seed)
        alike(everything(*found), everything(*pass_by(plain(layer), x, seed)), device)
        del found
    assert len(asked) == tried


def test_gradients_add_up(device, plain):
    layer = layer_on(device)
    settle(layer, device)
    other = plain(layer)
    for each in (layer, other):
        for seed in (7, 8):
            loss_of(*there(each, tokens(device, seed), seed)).backward()
    alike(*(tuple(p.grad for p in each.parameters()) for each in (layer, other)), device)


@pytest.mark.parametrize("linear", [False, True])
def test_a_second_derivative_even_after_another_pass(device, plain, linear):
    """The gradients of a sum do not hold the node that they came through: another pass takes its memory."""
    layer = layer_on(device, top=1)
    settle(layer, device)
    results = []
    for each in (layer, plain(layer)):
        x = tokens(device, 5)
        learned = x, *each.parameters()
        found = there(each, x, 5)
        loss = found[0].float().sum() if linear else loss_of(*found)
        first = torch.autograd.grad(loss, learned, create_graph=True)
        del found, loss
        pass_by(each, tokens(device, 6), 6)
        again = sum(grad.float().square().sum() for grad in first)
        results.append(torch.autograd.grad(again, learned, allow_unused=True))
    alike(*results, device)
    assert graphs_of(layer.up_proj).training.passes.replays == (3 if linear else 2)


def test_only_one_of_the_two_that_it_gives_goes_back(device, plain):
    layer = layer_on(device)
    settle(layer, device)
    results = []
    for each in (layer, plain(layer)):
        grads = []
        for pick in (lambda out, side: out.float().sum(), lambda out, side: side["loss/experts"][0]):
            x = tokens(device, 5)
            learned = x, *each.parameters()
            grads.append(torch.autograd.grad(pick(*there(each, x, 5)), learned, materialize_grads=True))
        results.append(tuple(grads))
    alike(*results, device)


def test_parts_that_do_not_learn_get_nothing(device, plain):
    layer = layer_on(device)
    layer.down_proj.requires_grad_(False)
    layer.router.requires_grad_(False)
    results = []
    for each in (layer, plain(layer)):
        for seed in range(WARMUP_PASSES + 2):
            each.zero_grad()
            loss_of(*there(each, tokens(device, seed), seed)).backward()
        assert {name for name, p in each.named_parameters() if p.grad is not None} == {
            "up_proj", "up_proj_bias", "down_proj_bias"
        }  # fmt: skip
        results.append(tuple(p.grad for p in each.parameters() if p.grad is not None))
    alike(*results, device)
    assert graphs_of(layer.up_proj).training.passes.replays == 2


def test_weights_that_moved_are_recorded_anew(device, plain):
    layer = layer_on(device)
    settle(layer, device)
    old = graphs_of(layer.up_proj).training.passes
    layer.up_proj.data = layer.up_proj.data.clone() * 2
    settle(layer, device)
    assert graphs_of(layer.up_proj).training.passes is not old
    x = tokens(device, 9)
    alike(everything(*pass_by(layer, x, 9)), everything(*pass_by(plain(layer), x, 9)), device)


def test_lengths_that_differ_and_masks_and_many_tokens_are_not_recorded(device, monkeypatch):
    layer = layer_on(device)
    for count in (5, 6, 7, 5, 6, 7):
        pass_by(layer, tokens(device, count=count))
    for _ in range(2 * WARMUP_PASSES):
        with exclude_padding(torch.ones(2, TOKENS, device=device)):
            pass_by(layer, tokens(device))
    monkeypatch.setattr(fast, "MAX_CAPTURED_PAIRS", 2 * TOKENS * layer.settings.top - 1)
    for _ in range(2 * WARMUP_PASSES):
        pass_by(layer, tokens(device))
    assert graphs_of(layer.up_proj).training.passes is None


def test_evaluation_leaves_the_recording_of_training_alone(device):
    layer, x = layer_on(device), tokens(device)
    settle(layer, device)
    passes, replays = graphs_of(layer.up_proj).training.passes, graphs_of(layer.up_proj).training.passes.replays
    layer.eval()
    there(layer, x)
    with torch.no_grad():
        for _ in range(WARMUP_PREDICTIONS + 1):
            there(layer, x)
        assert graphs_of(layer.up_proj).prediction.passes.replays == 1
        there(layer.train(), x)
    assert (graphs_of(layer.up_proj).training.passes, passes.replays) == (passes, replays)


@pytest.mark.parametrize("captured", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("top", [1, 2])
def test_predictions_that_come_again_and_again_are_recorded_too(device, plain, captured, top):
    layer = layer_on(device, top=top).eval()
    other, results = plain(layer), []
    with captured():
        for seed in range(WARMUP_PREDICTIONS + 3):
            x = tokens(device, seed)
            results.append(tuple(everything(there(each, x)) for each in (layer, other)))
    assert graphs_of(layer.up_proj).prediction.passes.replays == 3
    assert graphs_of(other.up_proj).prediction.passes is None
    for found, wanted in results:  # those of the first replay too, after the others
        alike(found, wanted, device)
    assert len(graphs_of(layer.up_proj).prediction.passes.captured.outputs) == 4  # nothing for a way back


def test_predictions_in_both_ways_that_torch_has_go_on_one_after_the_other(device, plain):
    """Memory that was made in inference mode may be written nowhere else."""
    layer = layer_on(device).eval()
    other = plain(layer)
    for captured in (torch.inference_mode, torch.no_grad):
        with captured():
            for seed in range(WARMUP_PREDICTIONS + 2):
                x = tokens(device, seed)
                alike(everything(there(layer, x)), everything(there(other, x)), device)
        assert graphs_of(layer.up_proj).prediction.passes.replays == 2


def predicting(layer, device):
    """The same layer, until its predictions are recorded."""
    with torch.no_grad():
        for seed in range(WARMUP_PREDICTIONS + 1):
            there(layer.eval(), tokens(device, seed))
    assert graphs_of(layer.up_proj).prediction.passes is not None
    return layer


@torch.no_grad()
def test_threads_get_their_own_predictions(device, plain, monkeypatch):
    """One has its pass behind it and its results not yet copied when the other comes."""
    layer, begun, found = predicting(layer_on(device), device), threading.Event(), {}
    wanted = [everything(there(plain(layer), tokens(device, seed))) for seed in (7, 8)]

    def replay(self, given, real=CapturedPass.replay):
        left = real(self, given)
        begun.set()
        time.sleep(0.3)
        return left

    def predict(seed):
        with torch.no_grad():
            found[seed] = everything(there(layer, tokens(device, seed)))

    monkeypatch.setattr(CapturedPass, "replay", replay)
    first, second = (threading.Thread(target=predict, args=(seed,)) for seed in (7, 8))
    first.start()
    assert begun.wait(60)
    second.start()
    for each in (first, second):
        each.join()
    for seed, told in zip((7, 8), wanted, strict=True):
        alike(found[seed], told, device)
    assert graphs_of(layer.up_proj).prediction.passes.replays == 3


@torch.no_grad()
def test_weights_that_are_cut_where_they_lie_are_recorded_anew(device, plain):
    layer = predicting(layer_on(device), device)
    layer.up_proj.data, layer.up_proj_bias.data = layer.up_proj.data[:, :16], layer.up_proj_bias.data[:, :16]
    layer.down_proj.data = layer.down_proj.data[:, :, :16]
    x = tokens(device, 9)
    alike(everything(there(layer, x)), everything(there(plain(layer), x)), device)
    assert graphs_of(layer.up_proj).prediction.passes is None


def test_training_takes_the_memory_of_recorded_predictions(device):
    layer = predicting(layer_on(device), device)
    pass_by(layer.train(), tokens(device))
    assert graphs_of(layer.up_proj).prediction.passes is None


def compiled(called, backend):
    torch.compiler.reset()
    return torch.compile(called, backend=backend, fullgraph=True)


@COMPILERS
@pytest.mark.filterwarnings("ignore")  # torch's own, of its compilers: each version has others
@pytest.mark.parametrize("training", [False, True])
def test_a_compiled_program_replays_its_layer(device, plain, backend, training):
    layer = layer_on(device).train(training)
    other, results = plain(layer), []
    program = compiled(lambda x: layer(x * 2) + 1, backend)
    for seed in range(WARMUP_PREDICTIONS + 2):
        x, given = tokens(device, seed), tokens(device, seed)
        with torch.set_grad_enabled(training):
            found, wanted = there(program, x, seed), there(lambda x: other(x * 2) + 1, given, seed)
        grads, others = (back(layer, x, found), back(other, given, wanted)) if training else ((), ())
        results.append((everything(found, grads), everything(wanted, others)))
        del found, wanted
    for found, wanted in results:  # those of the first replay too, after the others
        alike(found, wanted, device)
    done = graphs_of(layer.up_proj)
    assert (done.training if training else done.prediction).passes.replays == WARMUP_PREDICTIONS + 2 - (WARMUP_PASSES if training else WARMUP_PREDICTIONS)


@COMPILERS
@pytest.mark.filterwarnings("ignore")  # torch's own, of its compilers: each version has others
def test_two_compiled_passes_before_either_goes_back(device, plain, backend):
    layer = layer_on(device)
    program = compiled(layer, backend)
    for seed in range(WARMUP_PASSES + 1):
        x = tokens(device, seed)
        back(layer, x, there(program, x, seed))
    other, results, passes = plain(layer), [], graphs_of(layer.up_proj).training.passes
    replays = passes.replays
    for each, called in ((layer, program), (other, other)):
        xs = [tokens(device, seed) for seed in (7, 8)]
        founds = [there(called, x, seed) for seed, x in zip((7, 8), xs, strict=True)]
        results.append(tuple(everything(f, back(each, x, f)) for f, x in zip(founds, xs, strict=True)))
    alike(*results, device)
    assert passes.replays == replays + 1  # the second went another way


@COMPILERS
@pytest.mark.filterwarnings("ignore")  # torch's own, of its compilers: each version has others
@pytest.mark.parametrize("meanwhile", ["weights moved", "memory moved", "recordings forgotten"])
def test_a_compiled_pass_goes_back_whatever_happened_meanwhile(device, plain, monkeypatch, backend, meanwhile):
    layer, taken = layer_on(device), []
    program, other = compiled(layer, backend), plain(layer)

    def backward(self, *given, real=recorded.CapturedPasses.backward):
        taken.append(len(given))
        return real(self, *given)

    monkeypatch.setattr(recorded.CapturedPasses, "backward", backward)
    for seed in range(WARMUP_PASSES + 2):
        x, given = tokens(device, seed), tokens(device, seed)
        found, wanted = there(program, x, seed), there(other, given, seed)
        if seed > WARMUP_PASSES:
            for each in (layer, other):
                happen(meanwhile, each)
        alike(everything(found, back(layer, x, found)), everything(wanted, back(other, given, wanted)), device)
        del found, wanted
    assert len(taken) == 1  # by the first that was recorded, and not by the second


def happen(what, layer):
    bias = layer.up_proj_bias.data
    kept, memory = bias.clone(), bias.untyped_storage()
    if what == "recordings forgotten":
        fast.release_graphs(layer.up_proj)
    elif what == "weights moved":
        layer.up_proj_bias.data = kept
        bias.fill_(7.0)
    else:  # as those do who gather weights for one layer after the other
        size, old = memory.nbytes(), bias.data_ptr()
        memory.resize_(0)
        others = [torch.full_like(kept, 7.0) for _ in range(64)]
        memory.resize_(size)
        bias.copy_(kept)
        assert old in [each.data_ptr() for each in others] or bias.data_ptr() != old


def test_a_way_back_is_not_taken_with_the_memory_of_another_pass(device):
    layer = layer_on(device)
    settle(layer, device)
    passes, given = graphs_of(layer.up_proj).training.passes, (tokens(device).detach().flatten(0, 1),)
    kept, _, narrow, _ = passes.forward(given)[3:]
    user, how, parts = passes.token(), Config(2, True, 1 / 6, 0.005, 1 / 6, "logit", False), Weights(*layer._experts(), *narrow[4:])
    learned, grads = (True,) * 9, (torch.ones_like(given[0]).bfloat16(), None)
    found = fast.replay_backward(user, how, parts, kept, learned, grads)
    assert all(grad.shape == part.shape for grad, part in zip(found, (*given, *parts), strict=True))
    passes.forward(given)
    with pytest.raises(RuntimeError, match="another forward pass has overwritten"):
        fast.replay_backward(user, how, parts, kept, learned, grads)
    copied = Saved(*(each.clone() for each in kept))
    assert fast.replay_backward(user, how, parts, copied, learned, grads) is None
    assert fast.replay_backward(recorded.no_token(), how, parts, kept, learned, grads) is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("records", [False, True])
def test_a_compiler_that_records_its_programs_is_left_to_it(device, monkeypatch, records):
    layer, graphs = layer_on(device), []
    torch.compiler.reset()

    def kept(self, graph, _):
        graphs.append(graph)
        return graph

    monkeypatch.setattr(torch._TorchCompileInductorWrapper, "__call__", kept)
    with torch.autocast(device.type, torch.bfloat16):
        torch.compile(lambda x: layer(x * 2), options={"triton.cudagraphs": records}, fullgraph=True)(tokens(device))
    (node,) = (node for node in graphs[0].graph.nodes if node.target == torch.ops.holdfast.experts)
    again = [argument.name for argument in torch.ops.holdfast.experts.default._schema.arguments].index("replay")
    assert node.args[again] is not records


@COMPILERS
@pytest.mark.filterwarnings("ignore")  # torch's own, of its compilers: each version has others
def test_gradients_of_compiled_checkpoints_stay_when_the_layer_goes_on(device, backend):
    """Where a compiler goes there twice, no result of it may lie in the memory of a recording."""
    layer, found, before = layer_on(device, top=1, noise=0.0), [], []

    def called(x, z):
        return torch.utils.checkpoint.checkpoint(lambda x, z: layer(x * 2 + x.detach() * z), x, z, use_reentrant=False)

    program = compiled(called, backend)
    for seed in range(WARMUP_PASSES + 4):
        given = [tokens(device, each).detach().bfloat16().requires_grad_() for each in (seed, seed + 50)]
        with torch.autocast(device.type, torch.bfloat16):
            loss = (program(*given).float() - 1).square().mean()
        found += torch.autograd.grad(loss, given)
        before += [each.clone() for each in found[-2:]]
    assert graphs_of(layer.up_proj).training.passes.replays > 2
    assert all(torch.equal(a, b) for a, b in zip(found, before, strict=True))


def test_weights_may_be_put_in_the_place_of_others_when_they_are_loaded(device):
    layer = layer_on(device)
    settle(layer, device)
    layer.load_state_dict(copy.deepcopy(layer.state_dict()))
    assert graphs_of(layer.up_proj).training.passes is not None  # of weights that were written where they lie
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        layer.load_state_dict(copy.deepcopy(layer.state_dict()))
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    settle(layer, device)


def test_recordings_go_with_the_weights_that_they_are_of(device):
    layer = layer_on(device)
    settle(layer, device)
    passes = weakref.ref(graphs_of(layer.up_proj).training.passes)
    del layer
    gc.collect()
    assert passes() is None


@pytest.mark.parametrize("again", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_copy_begins_without_recordings(device, again):
    layer = layer_on(device)
    settle(layer, device)
    other = again(layer)
    assert graphs_of(other.up_proj).training.passes is None
    x = tokens(device, 4)
    alike(everything(*pass_by(other, x, 4)), everything(*pass_by(layer, x, 4)), device)


class Counted:
    """In the place of passes."""

    in_use = False


def test_passes_are_made_when_they_are_repeated_and_dropped_when_another_kind_comes():
    made, layer = [], RepeatedPass()

    def find(key):
        return layer.find(key, lambda: made.append(key) or Counted())

    assert [find("a") for _ in range(WARMUP_PASSES)] == [None] * WARMUP_PASSES
    first = find("a")
    assert first is find("a")
    first.in_use = True
    assert find("a") is None
    first.in_use = False
    assert find("a") is first
    assert find("b") is None
    assert find("a") is None
    assert made == ["a"]


def test_how_exact_products_are_is_known_whichever_way_it_was_asked_for():
    """Asked the old way after the new one, torch raises."""
    matmul = torch.backends.cuda.matmul
    try:
        torch.set_float32_matmul_precision("high")
        before = recorded.matmul_precision()
        torch.set_float32_matmul_precision("highest")
        assert recorded.matmul_precision() != before
        if hasattr(matmul, "fp32_precision"):
            matmul.fp32_precision = "tf32"
            assert recorded.matmul_precision() == before
    finally:
        if hasattr(matmul, "fp32_precision"):
            matmul.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")
