//! Lengths of time as people write them: `10`, `0.5`.

use std::time::Duration;

/// Parses a number of seconds.
///
/// # Errors
/// It is no number, negative, or longer than any clock counts.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    number.ok_or_else(|| format!("`{text}` is no number of seconds: write it as in 10 or 0.5"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_numbers_that_are_not_negative() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["", "soon", "-1", "NaN", "inf", "1e300"] {
            assert!(seconds(wrong).unwrap_err().contains("no number of seconds"), "{wrong}");
        }
    }
}
