"""The Python module on libtrireme: runs, weights and text beside those of the program.

library.py METRICS: METRICS are the rows of the program's run of the same options, and the folder has its data `documents`."""
import json
import sys

import numpy
import trireme

options = dict(data_path="documents", num_layers=4, hidden_size=32, num_attention_heads=4, seq_length=32, micro_batch_size=1,
               global_batch_size=8, lr=1e-3, train_iters=6, eval_iters=2, eval_interval=100)
losses = [row["lm_loss"] for row in map(json.loads, open(sys.argv[1])) if "lm_loss" in row]
name = "decoder.layers.1.mlp.linear_fc2.weight"


def refused(status, words, call):
    try:
        call()
    except trireme.Error as error:
        assert error.status == status and words in str(error), (error.status, str(error))
    else:
        raise AssertionError(f"{words}: not refused")


grids = [dict(), dict(ranks=2, tensor_model_parallel_size=2), dict(ranks=4, pipeline_model_parallel_size=2, bf16=True),
         dict(ranks=2, use_distributed_optimizer=True)]
for grid in grids:
    with trireme.Run(**options, **grid) as run:
        found = [run.step().loss for _ in range(3)]
        weight = run[name]
        assert weight.shape == run.shape(name) == (32, 128)
        # Writing back what was read changes nothing of what follows; neither does a part.
        run.write(name, weight[5:9, 10:20], slice(5, 9), slice(10, 20))
        run[name] = weight
        table = "embedding.word_embeddings.weight"
        run[table] = run[table]
        assert (run.read(name, slice(5, 9), slice(10, 20)) == weight[5:9, 10:20]).all()
        found += [step.loss for step in run]
        tolerance = 1e-2 if "bf16" in grid else 1e-5
        assert len(found) == 6 and numpy.allclose(found, losses, rtol=tolerance), (grid, found, losses)
        if not grid:
            assert numpy.array_equal(numpy.float32(found), numpy.float32(losses))
        assert run.last.over and abs(run.evaluate() - found[-1]) < 1
        refused(64, "all 6 steps are done", run.step)
        run.write(name, 0.25, slice(0, 2))
        assert (run[name][:2] == 0.25).all() and (run[name][2:] != 0.25).all()
        refused(66, "did you mean " + name, lambda: run.read(name[:-1]))
        refused(64, "has no 33 rows", lambda: trireme._check(
            trireme._library.trireme_run_read(run._handle, name.encode(), 0, 0, 33, 1, None)))

refused(64, "did you mean --num-layers", lambda: trireme.Run(num_layer=3))
refused(66, "nothing", lambda: trireme.Run(**{**options, "data_path": "nothing"}))
refused(66, "there is no such folder", lambda: trireme.Model("nothing"))

with trireme.Run(**options, save="saved") as run:
    for step in run:
        pass
    final = {weight: run[weight] for weight in run.names}
with trireme.Model("saved") as model:
    assert model.names == list(final) and all((model[weight] == final[weight]).all() for weight in final)
    short = model.generate("document", max_new_tokens=4, temperature=0)
    long = model.generate("document", max_new_tokens=8, temperature=0)
    assert len(short) < len(long) and long.startswith(short), (short, long)
    assert model.generate("document", max_new_tokens=4, temperature=0) == short
    refused(64, "max-new-tokens", lambda: model.generate("document", max_new_tokens=-1))
    assert model.generate("document", max_new_tokens=4, temperature=0, ranks=2, tensor_model_parallel_size=2) == short
print(f"library: {len(grids)} grids, {len(final)} weights")
