"""Why a passage was found: what flowed into its vector, in numbers, in words, for a question, on a terminal."""
