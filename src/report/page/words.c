// Numbers with their units as short words, and escaped text, for a page.
#include "report/page/parts.h"
#include <math.h>
#include <string.h>

// A no-break space keeps numbers and units together.
#define NBSP "\xc2\xa0"

static Word with_unit(double value, const char *unit) {
    Word word = word_number(value);
    size_t length = strlen(word.text);
    snprintf(word.text + length, sizeof word.text - length, NBSP "%s", unit);
    return word;
}

Word word_number(double value) {
    Word word;
    double size = fabs(value);
    int decimals = size >= 99.95 || size == 0 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3;
    if (size >= 1e4) return word_count(value);
    snprintf(word.text, sizeof word.text, "%.*f", decimals, value);
    return word;
}

Word word_count(double value) {
    char digits[40];
    Word word = {0};
    int length = snprintf(digits, sizeof digits, "%.0f", fmin(value, 1e18)), at = 0;
    for (int i = 0; i < length; i++) {
        bool grouped = i > 0 && (length - i) % 3 == 0 && length > 4;
        at += snprintf(word.text + at, sizeof word.text - (size_t)at, "%s%c", grouped ? "\xe2\x80\xaf" : "",
                       digits[i]);
    }
    return word;
}

Word word_seconds(double seconds) {
    if (seconds < 0.9995e-3) return with_unit(1e6 * seconds, "µs");
    if (seconds < 0.9995) return with_unit(1e3 * seconds, "ms");
    if (seconds < 1200) return with_unit(seconds, "s");
    return with_unit(seconds / 60, "min");
}

Word word_days(double seconds) {
    double hours = seconds / 3600;
    if (hours < 2) return with_unit(seconds / 60, "min");
    if (hours < 72) return with_unit(hours, "h");
    if (hours < 24 * 1000) return with_unit(hours / 24, "days");
    return with_unit(hours / 24 / 365.25, "years");
}

Word word_gb(double bytes) {
    Word word;
    snprintf(word.text, sizeof word.text, "%.1f" NBSP "GB", bytes / 1e9);
    return word;
}

Word word_percent(double share) {
    Word word;
    snprintf(word.text, sizeof word.text, "%.1f" NBSP "%%", 100 * share);
    return word;
}

Word word_tokens(double tokens) {
    return tokens < 1e9 ? with_unit(tokens / 1e6, "million") : with_unit(tokens / 1e9, "billion");
}

Word word_change(double share) {
    Word word;
    snprintf(word.text, sizeof word.text, "%s%.1f" NBSP "%%", share < 0 ? "−" : "+", fabs(100 * share));
    return word;
}

Word word_dollars(double dollars) {
    Word word = {"$"};
    bool large = dollars >= 999500;
    Word amount = large ? with_unit(dollars / 1e6, "M") : word_count(dollars);
    memcpy(word.text + 1, amount.text, sizeof word.text - 2);
    return word;
}

Word word_energy(double kwh) {
    if (kwh < 999.5) return with_unit(kwh, "kWh");
    return kwh < 999.5e3 ? with_unit(kwh / 1e3, "MWh") : with_unit(kwh / 1e6, "GWh");
}

double tick_step(double most) {
    double power = pow(10, floor(log10(most))), digits = most / power;
    return power * (digits >= 8 ? 2 : digits >= 4 ? 1 : digits >= 1.6 ? 0.5 : 0.2);
}

void html_grid(Text *out, const ParallelConfig *config) {
    const Grid grid = config->grid;
    int cp = grid_along(grid, AXIS_CP), ep = grid_along(grid, AXIS_EP);
    text_add(out, "%d·%d·%d", grid_along(grid, AXIS_TP), grid_along(grid, AXIS_PP),
             grid_along(grid, AXIS_DP));
    if (cp > 1) text_add(out, " c&#160;%d", cp);
    if (ep > 1) text_add(out, " ep&#160;%d", ep);
}

void html_text(Text *out, const char *string) {
    for (; *string; string++) {
        unsigned char c = (unsigned char)*string;
        if (strchr("&<>\"'", c))
            text_add(out, "&#%d;", c);
        else
            text_add(out, "%c", c < ' ' && c != '\n' ? ' ' : c);
    }
}
