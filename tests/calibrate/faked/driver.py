"""The driver of a virtual card: NVML as a C library, and the lines of nvidia-smi."""

SMI = ("570.10, 345, 1593, 1980, P0, 700.00, Enabled, Enabled, Disabled",)
CLOCK_MHZ = 1980


class Driver:
    """Functions of libnvidia-ml, called as ctypes calls them: the answer goes where the last argument points."""

    def __init__(self, state):
        self.state = state

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetHandleByUUID(self, _uuid, handle):
        handle._obj.value = 1
        return 0

    def nvmlDeviceGetClockInfo(self, _handle, kind, place):
        place._obj.value = int(CLOCK_MHZ / self.state.slow_by) if kind == 1 else 2619
        return 0

    def nvmlDeviceGetPowerUsage(self, _handle, place):
        place._obj.value = 650_000
        return 0

    def nvmlDeviceGetTemperature(self, _handle, _sensor, place):
        place._obj.value = self.state.temperature
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _handle, place):
        place._obj.value = self.state.slowed
        return 0
