"""The ``mrv2`` command: one module per subcommand, and what they share."""
