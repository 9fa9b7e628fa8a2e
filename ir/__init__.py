"""The levels of the intermediate representation: data, verifiers and text forms, no rewriting."""
