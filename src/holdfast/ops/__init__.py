"""Reference implementations in plain torch, with equations and shapes."""
