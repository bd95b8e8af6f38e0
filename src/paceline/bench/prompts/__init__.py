"""The prompts a bench decodes: built-in, files and logs."""
