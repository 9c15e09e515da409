// The curve of losses keeps the whole run in few points: their means are those of equal parts of the run.
#include "harness.h"
#include "train/internal.h"
#include <math.h>

static void points_are_means_of_equal_parts(void) {
    for (int steps = 1; steps <= 1000; steps += 7) {
        LossCurve curve = {0};
        int64_t counted = 0;
        for (int i = 0; i < steps; i++) loss_curve_add(&curve, i);
        loss_curve_add(&curve, NAN);
        for (int p = 0; p < CURVE_POINTS && curve.count[p]; p++) {
            int64_t first = p * curve.steps_per_point, count = curve.count[p];
            double mean = (double)first + (double)(count - 1) / 2;
            EXPECT(fabs(curve.sum[p] / (double)count - mean) < 1e-9, "%d steps, point %d: mean %g, not %g",
                   steps, p, curve.sum[p] / (double)count, mean);
            counted += count;
        }
        EXPECT(counted == steps, "%lld steps of %d are in the curve", (long long)counted, steps);
    }
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"points_are_means_of_equal_parts", points_are_means_of_equal_parts}, {0}}, argc,
        argv);
}
