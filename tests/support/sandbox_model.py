"""What a client may expect of its sandboxes, kept beside the platform: files, sessions, checkpoints, clocks, ends.

A model knows less than a clock does: what comes within SLACK of an end may have ended or not, and both are right.
"""
import dataclasses

SLACK = 8.0  # seconds that one step may take on a loaded machine

INFRA = {"agent_lost", "node_lost", "start_failed", "drain", "pressure", "data_fault"}
KINDLY = {"user", "ttl", "idle", "oom", "exit", "quota", "env_destroyed"}


@dataclasses.dataclass
class Expected:
    """One sandbox, as it has to be."""
    id: str
    labels: dict
    idle: int = 0
    lifetime: int = 0
    on_timeout: str = "stop"
    state: str = "running"  # or paused, queued, ended
    causes: frozenset = frozenset()  # of the end or the pause: one of these
    files: dict = dataclasses.field(default_factory=dict)
    said: str = ""  # the variable of its session
    background: str = ""  # an exec that goes on, if any
    checkpoints: dict = dataclasses.field(default_factory=dict)  # id -> (files, when it expires)
    used: tuple = (0.0, 0.0)  # the last use lies between these
    ends_at: float = 0.0  # of its lifetime, while it runs; 0: never
    left: float = 0.0  # of its lifetime, while it is paused

    @property
    def alive(self):
        return self.state != "ended"

    def begin(self, now):
        self.state, self.used = "running", (now, now)
        self.ends_at = now + self.lifetime if self.lifetime else 0.0

    def use(self, now):
        """Something was asked of its payload: it runs, and is not idle."""
        if self.state == "paused":
            self.resume(now)
        self.used = (now, now)

    def pause(self, now, causes=("user",)):
        self.state, self.causes = "paused", frozenset(causes)
        self.left = max(0.0, self.ends_at - now) if self.ends_at else 0.0

    def resume(self, now):
        if self.state != "paused":
            return
        if self.lifetime:  # used up: it gets all of it anew
            used_up = self.left <= 0 or "ttl" in self.causes
            self.ends_at = now + (self.lifetime if used_up else self.left)
        self.state, self.used = "running", (now, now)

    def restart_seen(self, now):
        """What the log does not tell begins anew: idle time."""
        self.used = (self.used[0], now)

    def end(self, *causes):
        self.state, self.causes, self.background = "ended", frozenset(causes), ""

    def rolled_back(self, files, now):
        self.files, self.said, self.background = dict(files), "", ""
        self.use(now)

    def due(self, now):
        """(what has surely come, what may have) of its timeouts."""
        sure, maybe = set(), set()
        if self.state != "running":
            return sure, maybe
        if self.ends_at:
            (sure if now >= self.ends_at + SLACK else maybe if now >= self.ends_at - SLACK else set()).add("ttl")
        if self.idle and not self.background:
            if now >= self.used[1] + self.idle + SLACK:
                sure.add("idle")
            elif now >= self.used[0] + self.idle - SLACK:
                maybe.add("idle")
        return sure, maybe

    def settle(self, now, info):
        """Time has passed: takes over what may have happened, and says what cannot be."""
        sure, maybe = self.due(now)
        state, cause, reason = info["state"], info.get("cause"), info.get("pause_reason")
        if self.state == "running" and (sure or maybe):
            if state == "running":
                return f"still runs, past {sure}" if sure else None
            if self.on_timeout == "pause":
                if state != "paused" or reason not in sure | maybe:
                    return f"is {state} ({cause or reason}), expected paused for one of {sure | maybe}"
                self.pause(self.ends_at if reason == "ttl" else now, (reason,))
                self.left = info["lifetime_left_ms"] / 1000 if reason == "idle" and self.lifetime else 0.0
                return None
            if state != "ended" or cause not in sure | maybe:
                return f"is {state} ({cause or reason}), expected ended for one of {sure | maybe}"
            self.end(cause)
            return None
        if state != self.state:
            return f"is {state} ({cause or reason}, {info.get('end_detail')}), expected {self.state}"
        if state == "ended":
            if cause not in self.causes:
                return f"ended as {cause}, expected one of {sorted(self.causes)}"
            if info["infra"] != (cause in INFRA):
                return f"ended as {cause} with infra={info['infra']}"
        if state == "paused" and reason not in self.causes:
            return f"paused for {reason}, expected one of {sorted(self.causes)}"
        return None
