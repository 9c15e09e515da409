// Numbers of a plan as people read them. Shared by the files that print one as text.
#pragma once
#include "base/text.h"

void add_short(double value, Text *out);      // three digits and a prefix: "174 B", "1.01 T"
void add_digits(double value, Text *out);     // three digits, without an exponent for large values
void add_duration(double seconds, Text *out); // "22.8 days"
void add_step(double seconds, Text *out);     // "812 ms"
void add_energy(double kwh, Text *out);       // "547 MWh"
