"""Settings of all tests: in CI hypothesis looks at the same examples every time, elsewhere at new ones."""

import os

from hypothesis import HealthCheck, settings

SLOW_IS_FINE = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)

settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=SLOW_IS_FINE)
settings.register_profile("local", deadline=None, print_blob=True, suppress_health_check=SLOW_IS_FINE)
settings.load_profile("ci" if os.environ.get("CI") else "local")
