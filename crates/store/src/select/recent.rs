//! What was made last, for one who asks again.

/// Values by the bytes that they are made from. The one that was not asked for for the longest time
/// makes room for a new one.
#[derive(Clone, Debug)]
pub(super) struct Recent<V> {
    kept: Vec<Kept<V>>,
    most: usize,
    /// Counts uses.
    now: u64,
}

#[derive(Clone, Debug)]
struct Kept<V> {
    bytes: Box<[u8]>,
    used: u64,
    value: V,
}

impl<V: Clone> Recent<V> {
    /// No values yet, and so many at most.
    pub(super) const fn new(most: usize) -> Recent<V> {
        Recent { kept: Vec::new(), most, now: 0 }
    }

    /// The value of these bytes, if it is kept.
    pub(super) fn find(&mut self, bytes: &[u8]) -> Option<V> {
        self.now += 1;
        let kept = self.kept.iter_mut().find(|kept| *kept.bytes == *bytes)?;
        kept.used = self.now;
        Some(kept.value.clone())
    }

    /// Keeps the value of these bytes.
    pub(super) fn keep(&mut self, bytes: &[u8], value: V) {
        let kept = Kept { bytes: bytes.into(), used: self.now, value };
        if self.kept.len() < self.most {
            self.kept.push(kept);
        } else if let Some(oldest) = self.kept.iter_mut().min_by_key(|kept| kept.used) {
            *oldest = kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_makes_room() {
        let mut recent = Recent::new(16);
        for number in 0..100u8 {
            assert_eq!(recent.find(&[number]), None);
            recent.keep(&[number], number);
            assert_eq!(recent.find(&[0]), Some(0));
            assert!(recent.kept.len() <= 16);
        }
        assert_eq!([0, 99, 1].map(|number| recent.find(&[number])), [Some(0), Some(99), None]);
    }
}
