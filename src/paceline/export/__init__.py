"""A plan as the settings of the engines that people serve with."""
