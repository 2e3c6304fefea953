//! Rates as exact fractions, and what serves bytes at a rate.

/// Bytes in a time, as a fraction that is never rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    bytes: u64,
    ps: u64,
}

impl Rate {
    /// `bytes` in `ps` picoseconds.
    ///
    /// # Panics
    /// If either is zero.
    pub const fn new(bytes: u64, ps: u64) -> Rate {
        assert!(bytes > 0 && ps > 0, "a rate is more than zero, and finite");
        let by = gcd(bytes as u128, ps as u128) as u64;
        Rate { bytes: bytes / by, ps: ps / by }
    }

    /// `bytes` in a second.
    ///
    /// # Panics
    /// If that is zero.
    pub const fn per_second(bytes: u64) -> Rate {
        Rate::new(bytes, 1_000_000_000_000)
    }

    /// The part `of / all` of this rate.
    ///
    /// # Panics
    /// If either is zero, or the fraction has no exact form in 64 bits.
    pub const fn part(self, of: u64, all: u64) -> Rate {
        let (bytes, ps) = (self.bytes as u128 * of as u128, self.ps as u128 * all as u128);
        assert!(bytes > 0 && ps > 0, "a rate is more than zero, and finite");
        let by = gcd(bytes, ps);
        let (bytes, ps) = (bytes / by, ps / by);
        assert!(bytes <= u64::MAX as u128 && ps <= u64::MAX as u128, "the fraction is too fine");
        Rate { bytes: bytes as u64, ps: ps as u64 }
    }

    /// The time that `bytes` take, in picoseconds, rounded up.
    pub const fn time_ps(self, bytes: u64) -> u64 {
        let ps = (bytes as u128 * self.ps as u128).div_ceil(self.bytes as u128);
        if ps > u64::MAX as u128 { u64::MAX } else { ps as u64 }
    }

    /// In 10⁹ bytes per second, for people.
    pub fn gigabytes_per_second(self) -> f64 {
        self.bytes as f64 * 1e3 / self.ps as f64
    }
}

const fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Serves bytes at a rate, in the order in which they come.
///
/// While it is never idle, only the total is rounded, so that many small pieces take exactly as
/// long as a large one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Server {
    rate: Option<Rate>,
    busy_from: u64,
    /// The bytes served since then.
    bytes: u64,
    free_at: u64,
}

impl Server {
    /// A server that is idle; `None` is a rate without a limit.
    pub fn new(rate: Option<Rate>) -> Server {
        Server { rate, ..Server::default() }
    }

    /// The moment at which all that it has accepted is served.
    pub fn free_at(&self) -> u64 {
        self.free_at
    }

    /// How long so many bytes take by themselves.
    pub fn takes(&self, bytes: u64) -> u64 {
        self.rate.map_or(0, |rate| rate.time_ps(bytes))
    }

    /// Accepts bytes that are there at `now`; returns the moment at which the last is served.
    pub fn serve(&mut self, now: u64, bytes: u64) -> u64 {
        if now > self.free_at || self.rate.is_none() {
            (self.busy_from, self.bytes) = (now.max(self.free_at), 0);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.free_at = self.busy_from.saturating_add(self.takes(self.bytes));
        self.free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_exact() {
        let third = Rate::new(3, 1000);
        assert_eq!([1, 2, 3].map(|n| third.time_ps(n)), [334, 667, 1000]);
        assert_eq!(Rate::per_second(16_000_000_000).time_ps(64), 4000);
        assert_eq!(third.part(1, 2), Rate::new(3, 2000));
        assert_eq!(third.time_ps(u64::MAX), u64::MAX, "more than 64 bits of time is forever");
    }

    #[test]
    fn rounding_does_not_add_up() {
        let mut server = Server::new(Some(Rate::new(3, 1000)));
        let ends: Vec<u64> = (0..6).map(|_| server.serve(0, 1)).collect();
        assert_eq!(ends, [334, 667, 1000, 1334, 1667, 2000]);
        assert_eq!(server.serve(5000, 3), 6000, "an idle server begins when bytes come");
    }
}
