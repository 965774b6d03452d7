"""Micro-steps told apart by what a script calls: forwards, backwards and steps."""

from autotune.evaluators.script_worker.micro_steps import MicroSteps


def taken(calls, *, micro=8):
    """F: forward of 8 samples, f: of 4, B: backward of loss 2, b: of loss 1, S: engine.step."""
    steps = MicroSteps()
    for call in calls:
        if call in "Ff":
            steps.forward(samples=8 if call == "F" else 4, tokens=10)
        elif call in "Bb":
            steps.backward(2.0 if call == "B" else 1.0, adds_up=False)
        else:
            steps.boundary()
    found = steps.take()
    return found.count(2), found.fed(micro), found.loss()


def test_a_plain_loop():
    assert taken("FBSFbS") == (2, (8, 8), 1.5)


def test_accelerate_steps_at_the_boundary_only():
    assert taken("FBFbS") == (2, (8, 8), 1.5)


def test_two_losses_of_one_batch_add_up():
    assert taken("FBbSFBbS") == (2, (8, 8), 3.0)


def test_two_views_of_one_batch_are_one_batch():
    assert taken("FFBSFFBS") == (2, (8, 8), 2.0)


def test_a_batch_in_two_pieces_is_the_sum():
    assert taken("ffBS") == (1, (8,), 2.0)


def test_without_a_forward_seen_the_engine_says_how_many():
    assert taken("BSBS") == (2, (), 2.0)
    assert taken("BbSBbS") == (2, (), 3.0)


def test_losses_that_are_divided_already_add_up():
    steps = MicroSteps()
    for loss in (1.5, 2.5):
        steps.forward(samples=4, tokens=0)
        steps.backward(loss, adds_up=True)
    assert steps.take().loss() == 4.0


def test_an_evaluation_between_steps_is_not_counted():
    steps = MicroSteps()
    steps.forward(samples=4, tokens=3)
    steps.backward(1.0, adds_up=False)
    assert steps.take().tokens == 3
    assert steps.take().steps == ()
