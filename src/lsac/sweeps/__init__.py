"""Many experiments with one command: suites, plans, engines that train them, and tuning."""
