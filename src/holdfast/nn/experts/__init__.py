"""Feed-forward networks that share the tokens: a router chooses a few of them for each."""
