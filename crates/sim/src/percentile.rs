//! Percentiles, by one rule for simulations and measurements.

/// The smallest value that at least `per_mille` thousandths of the values do not exceed (the
/// nearest rank): 500 gives the median, 990 the 99th percentile. `None` of no values.
///
/// `sorted` begins with the smallest value.
pub fn percentile<T: Copy>(sorted: &[T], per_mille: usize) -> Option<T> {
    let rank = (sorted.len() * per_mille).div_ceil(1000).max(1);
    sorted.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_rank() {
        let hundred: Vec<u32> = (1..=100).collect();
        for (per_mille, value) in [(0, 1), (10, 1), (11, 2), (500, 50), (990, 99), (999, 100)] {
            assert_eq!(percentile(&hundred, per_mille), Some(value), "{per_mille} ‰");
        }
        assert_eq!(percentile(&hundred, 1000), Some(100));
        assert_eq!(percentile(&hundred[..3], 500), Some(2));
        assert_eq!(percentile(&[3.0], 990), Some(3.0));
        assert_eq!(percentile::<u8>(&[], 500), None);
    }
}
