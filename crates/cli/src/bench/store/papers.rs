//! What the papers' texts and tables say, where a figure shows it beside this run.
//!
//! The papers' machines are other ones: what they say is shown as a ratio, applied to what this run
//! has measured.

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

/// Caribou §6.2: decompression adds 1.6 µs to a read of 256 B, and with the value's size, where a
/// ping takes 17 to 18 µs: what it adds to a read, as a share of it, for each byte.
pub(super) const CARIBOU_DECOMPRESSION: f64 = 1.6 / 256.0 / 17.5;

/// Caribou §6.3: two million inserts or deletes a second at every size, beside eleven million reads
/// of small values (Figure 8).
pub(super) const CARIBOU_INSERTS: f64 = 2.0 / 11.0;

/// Caribou's Figure 12: the network carries a quarter of what the selection looks at.
pub(super) const CARIBOU_NETWORK: f64 = 1.25 / 5.0;

/// RedN §5.4: gets by chain are so many times as fast as one-sided ones, at most, and as those of
/// memcached by a polling stack of sockets.
pub(super) const REDN_GETS: [f64; 2] = [1.7, 2.6];
