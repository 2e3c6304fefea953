//! What the papers' texts and tables say, where a figure shows it beside this run.

/// RedN's Table 5: hash gets of 64 B and 4 KB, median and 99th percentile, in µs, by RedN and, as
/// RedN quotes it, by StRoM.
pub(super) const TABLE_5: [(&str, f64, f64); 4] = [
    ("64 B, median", 5.7, 7.0),
    ("64 B, 99th", 6.9, 7.0),
    ("4 KiB, median", 6.7, 12.0),
    ("4 KiB, 99th", 8.4, 13.0),
];

/// Caribou's Figures 9 and 13b: throughput stays within 1 % of that of the uniform pattern, and
/// within the network's bound whatever is added; both as percentages of the plain figure.
pub(super) const CARIBOU_FLAT: f64 = 100.0;
