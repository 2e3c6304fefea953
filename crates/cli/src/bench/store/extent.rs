//! How much is measured, in full or with `--quick`.

/// Latencies are measured in this many times more runs, which are shorter by the same factor: some
/// ms. If the host's speed changes during them, as many of Remora's runs as of the peer's come
/// before the change.
pub(super) const SHORTER: usize = 5;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Runs of each measurement, in turn with those that it is compared with.
    pub(super) runs: usize,
    /// Calls of a run whose median is taken.
    pub(super) calls: usize,
    /// Calls of a run whose rate is taken.
    pub(super) rate: usize,
    /// Keys that the store on the card has in each of its tablespaces.
    pub(super) keys: u64,
    /// Runs of the clients of Redis and memcached, which are programs that run for seconds.
    pub(super) fronts: usize,
    /// Their requests in a run, one at a time and 16 at a time on each connection.
    pub(super) requests: u64,
    pub(super) pipelined: u64,
    /// Their requests where each change is on the disk before it is answered.
    pub(super) logged: u64,
    /// Their keys.
    pub(super) served: u64,
    /// Keys for the bytes that a key takes.
    pub(super) resident: u64,
    /// The scale factor of TPC-H.
    pub(super) factor: f64,
    /// Rows of TPC-H in the store on the card.
    pub(super) remote_rows: usize,
}

pub(super) const FULL: Extent = Extent {
    runs: 5,
    calls: 400,
    rate: 40_000,
    keys: 20_000,
    fronts: 3,
    requests: 100_000,
    pipelined: 500_000,
    logged: 20_000,
    served: 100_000,
    resident: 1_000_000,
    factor: 0.1,
    remote_rows: 20_000,
};

pub(super) const QUICK: Extent = Extent {
    runs: 2,
    calls: 10,
    rate: 500,
    keys: 500,
    fronts: 1,
    requests: 2_000,
    pipelined: 5_000,
    logged: 500,
    served: 1_000,
    resident: 5_000,
    factor: 0.001,
    remote_rows: 1_000,
};
