"""The one tree of errors that autotune raises for misuse.

    AutotuneError
    +-- CampaignError     a campaign file (or an override) that can't be used
    +-- ConfigError       a DeepSpeed configuration that can't be used
    +-- SpaceError        a search space, or a point, that can't be used
    +-- WorkloadError     a workload that can't be loaded
    +-- StorageError      a storage that can't be reached
    +-- StudyError        a study that doesn't exist, exists already, or is being run
        +-- UnreadableStudyError   another version of autotune kept it, in another form
    +-- SearcherError     a searcher that broke its protocol, or has nothing left to propose
    +-- ResourceError     processors, GPUs or nodes that can't be had
        +-- HostLostError the place of a rank is gone: its node died, or the process that looks after it there

A trial that fails is not an error: it is a value, `autotune.trials.Failure`.
"""


class AutotuneError(Exception):
    """Any misuse of autotune. The message gives the name, the value got, the rule, and what to do."""


class CampaignError(AutotuneError):
    """A campaign file, or an override of one of its keys, can't be used."""


class ConfigError(AutotuneError):
    """A DeepSpeed configuration can't be read or used."""


class SpaceError(AutotuneError):
    """A search space is not well formed, or a point is outside it."""


class WorkloadError(AutotuneError):
    """A workload can't be loaded or returns something unusable."""


class StorageError(AutotuneError):
    """A storage can't be reached, or holds something autotune did not write."""


class StudyError(AutotuneError):
    """A study doesn't exist, exists already, or another controller runs it."""


class UnreadableStudyError(StudyError):
    """A study that another version of autotune kept, in a form that this one can't read."""


class SearcherError(AutotuneError):
    """A searcher broke its protocol."""


class SpaceExhausted(SearcherError):
    """Every point of the search space has been proposed."""


class ResourceError(AutotuneError):
    """The machine or cluster doesn't have what a trial needs."""


class HostLostError(ResourceError):
    """The place where a rank runs is gone, through no fault of the configuration; the trial can run elsewhere."""
