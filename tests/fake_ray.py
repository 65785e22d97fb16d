"""Ray's part in a cluster, played in one process and in any order, with workers that are lost on cue."""

import itertools
import pickle
import random
import types

Errors = types.SimpleNamespace(
    RayActorError=type("RayActorError", (Exception,), {}),
    ObjectLostError=type("ObjectLostError", (Exception,), {}),
    RayTaskError=type("RayTaskError", (Exception,), {}),
)
Errors.ActorDiedError = type("ActorDiedError", (Errors.RayActorError,), {})


class Ref:
    """A reference of Ray's: 28 bytes, whatever it stands for."""

    numbers = itertools.count()

    def __init__(self):
        self.name = f"{next(self.numbers):056d}"

    def hex(self):
        return self.name

    def __reduce__(self):
        return bytes.fromhex, (self.name,)


class Call:
    def __init__(self, actor, name, args, retried):
        self.actor, self.name, self.args, self.retried = actor, name, args, retried
        self.outcome = None


class Method:
    def __init__(self, actor, name, retried=False):
        self.actor, self.name, self.retried = actor, name, retried

    def options(self, max_task_retries):
        assert max_task_retries == -1
        return Method(self.actor, self.name, True)

    def remote(self, *args):
        ref = Ref()
        ray = self.actor.ray
        ray.calls[ref] = Call(self.actor, self.name, args, self.retried)
        ray.sent.append((self.name, len(pickle.dumps(args))))
        return ref


class Actor:
    def __init__(self, ray, kind):
        self.ray, self.kind, self.process, self.dead = ray, kind, kind(), False

    def __getattr__(self, name):
        return Method(self, name)


class FakeRay(types.ModuleType):
    """``faults`` says, at every call that is about to be made, whether the worker is lost first ("lose", "gone")."""

    exceptions = Errors

    def __init__(self, seed=0, faults=lambda actor, name: None, cpus=3):
        super().__init__("ray")
        self.random, self.faults, self.cpus = random.Random(seed), faults, cpus
        self.calls, self.things, self.actors = {}, {}, []
        self.sent, self.answers, self.fetched, self.calling, self.stuck = [], [], [], None, None
        self.cloudpickle = pickle

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return {"CPU": self.cpus}

    def remote(self, **options):
        assert options["max_restarts"] == -1 and options["max_task_retries"] == 0

        def of(kind):
            def remote():
                self.actors.append(Actor(self, kind))
                return self.actors[-1]

            return types.SimpleNamespace(remote=remote)

        return of

    def put(self, thing):
        ref = Ref()
        self.things[ref] = thing
        return ref

    def get(self, ref):
        if ref in self.things:
            self.fetched.append((self.calling, ref))
            return self.things[ref]
        outcome = self.calls.pop(ref).outcome
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def wait(self, refs, num_returns, timeout):
        assert refs, "there is nothing to wait for"
        if timeout and not any(self.calls[ref].outcome for ref in refs) and not self.stuck:
            self._call(self.random.choice(self._next_ones(refs)))
        done = [ref for ref in refs if self.calls[ref].outcome is not None]
        self.random.shuffle(done)
        return done[:num_returns], []

    def kill(self, actor):
        actor.dead = True

    def _next_ones(self, refs):
        """The oldest call of every worker: a worker answers in the order in which it was asked."""
        first = {}
        for ref in refs:
            if self.calls[ref].outcome is None:
                first.setdefault(id(self.calls[ref].actor), ref)
        return list(first.values())

    def _call(self, ref):
        call = self.calls[ref]
        fault = self.faults(call.actor, call.name)
        if fault is not None:
            self._lose(call.actor, Errors.ActorDiedError if fault == "gone" else Errors.RayActorError)
            return
        args = [self.things[arg] if isinstance(arg, Ref) else arg for arg in call.args]
        self.calling = call.actor
        try:
            call.outcome = getattr(call.actor.process, call.name)(*args)
        except Exception as error:
            call.outcome = Errors.RayTaskError(str(error))
            call.outcome.cause = error
        else:
            self.answers.append((call.name, len(pickle.dumps(call.outcome))))

    def _lose(self, actor, error):
        """Ray starts the worker again; of what it had been asked it repeats only what it may."""
        actor.process, actor.dead = actor.kind(), error is Errors.ActorDiedError
        for call in self.calls.values():
            if call.actor is actor and call.outcome is None and (not call.retried or actor.dead):
                call.outcome = error("the worker was lost\nkilled by signal 9")
