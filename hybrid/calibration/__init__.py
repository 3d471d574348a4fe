"""Calibration: measures this machine's step times with the real engine. What is measured goes to `hybrid.capacity`."""
