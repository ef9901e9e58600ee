"""A campaign: worker processes that fuzz one target until time is over, and a folder that keeps all they found."""
