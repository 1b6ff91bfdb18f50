"""Tasks: the loss, the metrics and the prediction format of one kind of problem."""
