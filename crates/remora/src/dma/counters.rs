//! What an engine has counted, by names.

/// What an engine has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Descriptors that were done.
    pub done: u64,
    /// Descriptors that failed, for any reason.
    pub failed: u64,
    /// Of these, those that were no descriptors.
    pub invalid: u64,
    /// Of these, those whose addresses were not granted or not within memory.
    pub out_of_range: u64,
    /// Of these, those whose application's memory could not be reached.
    pub faults: u64,
    /// Bytes that were moved or filled.
    pub bytes: u64,
    /// Times that a sleeper was woken.
    pub interrupts: u64,
    /// Rings that are served no more, because their index was overwritten.
    pub halted: u64,
}

impl Counters {
    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("done", self.done),
            ("failed", self.failed),
            ("invalid", self.invalid),
            ("out_of_range", self.out_of_range),
            ("faults", self.faults),
            ("bytes", self.bytes),
            ("interrupts", self.interrupts),
            ("halted", self.halted),
        ]
        .into_iter()
    }
}
