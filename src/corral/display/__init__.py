"""What a person sees while something runs: curves of a training run, bars of long tasks, lines without a terminal."""
