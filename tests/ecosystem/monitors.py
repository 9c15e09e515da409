"""TensorBoard's readers and prometheus_client's parsers on what runs wrote that were killed and went on.

monitors.py EVENTS METRICS PROM: the curves in the folder EVENTS are those of the last row of each step in METRICS, and
PROM is what both of Prometheus' formats allow, with the numbers of the last step. TensorBoard reads by Python, and by its
data server, the program in Rust that it starts where that is installed."""
import json
import math
import sys
import time

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.context import RequestContext
from tensorboard.data.server_ingester import SubprocessServerDataIngester, get_server_binary
from tensorboard.util.grpc_util import ChannelCredsType

events, metrics, prom = sys.argv[1:]
steps, validations = {}, {}
for line in open(metrics):
    row = json.loads(line)
    if "event" in row:
        continue
    rows = validations if "validation_loss" in row else steps
    rows[row["iteration"]] = row


def near(a, b):
    return math.isclose(float(a), float(b), rel_tol=1e-6, abs_tol=1e-12)


reader = EventAccumulator(events)
reader.Reload()
tags = {"lm loss": "lm_loss", "grad-norm": "grad_norm", "learning-rate": "learning_rate", "batch-size": "global_batch_size",
        "loss-scale": "loss_scale", "tokens-per-second": "tokens_per_s", "throughput": "tflops_per_rank"}
for tag, key in tags.items():
    curve = [(event.step, event.value) for event in reader.Scalars(tag)]
    assert [step for step, _ in curve] == sorted(steps), f"{tag}: steps {curve} where {sorted(steps)} were trained"
    for step, value in curve:
        assert near(value, steps[step][key]), f"{tag} of step {step}: {value}, not {steps[step][key]}"
times = {event.step: event.value for event in reader.Scalars("iteration-time")}
assert all(near(1e3 * times[step], row["elapsed_ms"]) for step, row in steps.items())
curve = {event.step: event.value for event in reader.Scalars("lm loss validation")}
assert curve.keys() == validations.keys()
assert all(near(curve[step], row["validation_loss"]) for step, row in validations.items())

server = SubprocessServerDataIngester(get_server_binary(), events, reload_interval=0, channel_creds_type=ChannelCredsType.LOCAL,
                                      samples_per_plugin={"scalars": 100000})
server.start()  # it answers before it has read all


def served(tag):
    runs = server.data_provider.read_scalars(RequestContext(), experiment_id="", plugin_name="scalars", downsample=100000)
    assert len(runs) <= 1, f"the data server sees the runs {list(runs)}"
    return {datum.step: datum.value for run in runs.values() for datum in run.get(tag, [])}


deadline = time.monotonic() + 60
while sorted(served("lm loss")) != sorted(steps) and time.monotonic() < deadline:
    time.sleep(0.2)
for tag, key in tags.items():
    curve = served(tag)
    assert sorted(curve) == sorted(steps), f"{tag}: the data server has steps {sorted(curve)} where {sorted(steps)} were trained"
    assert all(near(value, steps[step][key]) for step, value in curve.items()), f"{tag}: the data server has other values"
assert served("lm loss validation").keys() == validations.keys()

text = open(prom).read()
last = steps[max(steps)]
for parser in openmetrics, prometheus:
    samples = {sample.name: sample for family in parser(text) for sample in family.samples}
    assert samples["trireme_iteration"].value == max(steps)
    assert samples["trireme_iteration"].labels == {"run": "run \"one\""}
    assert samples["trireme_consumed_samples_total"].value == last["consumed_samples"]
    assert near(samples["trireme_lm_loss"].value, last["lm_loss"])
    assert near(1e3 * samples["trireme_step_seconds"].value, last["elapsed_ms"])
    assert near(samples["trireme_validation_loss"].value, validations[max(validations)]["validation_loss"])
assert samples["trireme_build_info"].labels.keys() == {"run", "version"}
# Prometheus's own reader, which node_exporter has, refuses the types that OpenMetrics adds.
for line in text.splitlines():
    assert not line.startswith("# TYPE") or line.split()[3] in ("counter", "gauge", "histogram", "summary", "untyped"), line
print(f"monitors: {len(steps)} steps, {len(validations)} evaluations, {len(samples)} samples")
