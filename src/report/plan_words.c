// Numbers of a plan as people read them: three digits, with a unit that suits their size.
#include "report/plan_words.h"

static const double DAY_S = 86400, HOUR_S = 3600;

void add_short(double value, Text *out) {
    static const char *const prefixes[] = {"", " K", " M", " B", " T"};
    int i = 0;
    for (; value >= 999.5 && i < 4; i++) value /= 1000;
    text_add(out, "%.*f%s", value < 9.995 && i ? 2 : value < 99.95 && i ? 1 : 0, value, prefixes[i]);
}

void add_digits(double value, Text *out) {
    text_add(out, value >= 99.95 ? "%.0f" : value >= 0.9995 ? "%.3g" : "%.2g", value);
}

void add_duration(double seconds, Text *out) {
    bool days = seconds >= 2 * DAY_S, hours = seconds >= 2 * HOUR_S, minutes = seconds >= 120;
    add_digits(seconds / (days ? DAY_S : hours ? HOUR_S : minutes ? 60 : 1), out);
    text_add(out, days ? " days" : hours ? " hours" : minutes ? " minutes" : " seconds");
}

void add_step(double seconds, Text *out) {
    if (seconds < 1)
        add_digits(1e3 * seconds, out);
    else
        text_add(out, "%.2f", seconds);
    text_add(out, seconds < 1 ? " ms" : " s");
}

void add_energy(double kwh, Text *out) {
    bool large = kwh >= 999.5e3, small = kwh < 999.5;
    add_digits(kwh / (large ? 1e6 : small ? 1 : 1e3), out);
    text_add(out, large ? " GWh" : small ? " kWh" : " MWh");
}
