//! Sets of hosts, as world files name them.

/// The hosts that a word names, of so many: `"3"`, `"0-15"` (both included; `"0..15"` is the same),
/// `"0-63/4"` (every fourth), several of these with commas between them, and `"!3"` or `"!8-11"`,
/// which are left out: of the others, or, if there are none, of all. They come in the order in
/// which they are named. No host is named twice, so that the work is bounded by their number.
///
/// # Errors
/// What is wrong, in words.
pub(super) fn hosts(word: &str, of: u32) -> Result<Vec<u32>, String> {
    let (mut out, mut has_in) = (vec![false; of as usize], vec![false; of as usize]);
    let mut named = Vec::new();
    let mut names_some = false;
    for term in word.split(',').map(str::trim) {
        let (is_out, range) = match term.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, term),
        };
        let (first, last, step) = range_of(range).ok_or_else(|| {
            let short: String = term.chars().take(40).collect();
            format!("\"{short}\" names no hosts")
        })?;
        if last >= of {
            return Err(format!("there is no host {last}"));
        }
        names_some |= !is_out;
        for host in (first..=last).step_by(step as usize) {
            let seen = if is_out { &mut out } else { &mut has_in };
            if core::mem::replace(&mut seen[host as usize], true) {
                return Err(format!("host {host} is named twice"));
            }
            if !is_out {
                named.push(host);
            }
        }
    }
    if !names_some {
        named = (0..of).collect();
    }
    named.retain(|host| !out[*host as usize]);
    if named.is_empty() { Err("no host is left".into()) } else { Ok(named) }
}

/// The first host, the last one, and the step between them.
fn range_of(range: &str) -> Option<(u32, u32, u32)> {
    let (range, step) = match range.split_once('/') {
        Some((range, step)) => (range, number(step)?),
        None => (range, 1),
    };
    let ends = range.split_once("..").or_else(|| range.split_once('-'));
    let (first, last) = ends.unwrap_or((range, range));
    let (first, last) = (number(first)?, number(last)?);
    (first <= last && step > 0).then_some((first, last, step))
}

/// A number without a sign.
fn number(word: &str) -> Option<u32> {
    let word = word.trim();
    word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_ranges_steps_lists_and_what_is_left_out() {
        let named = |word| hosts(word, 16).unwrap();
        assert_eq!(named("3"), [3]);
        assert_eq!((named("0-3"), named(" 0 .. 3 ")), (vec![0, 1, 2, 3], vec![0, 1, 2, 3]));
        assert_eq!(named("0-15/4"), [0, 4, 8, 12]);
        assert_eq!(named("1-6/3, 0"), [1, 4, 0], "in the order of their names");
        assert_eq!(named("!3"), (0..16).filter(|host| *host != 3).collect::<Vec<_>>());
        assert_eq!(named("!8-15,!0-7/2"), [1, 3, 5, 7]);
        assert_eq!(named("!2,0-4,!3"), [0, 1, 4]);
        assert_eq!(named("15-15/4294967295"), [15]);
    }

    #[test]
    fn what_names_no_set_is_refused() {
        let wrong = |word| hosts(word, 16).unwrap_err();
        for word in ["", ",", "1,", "a", "3-1", "-1", "+1", "0-4/0", "!", "!!3", "0-1-2", "0/1/2"] {
            assert!(wrong(word).ends_with("names no hosts"), "{word}: {}", wrong(word));
        }
        assert_eq!(wrong("0-16"), "there is no host 16");
        assert_eq!((wrong("0-4294967295"), wrong("0-7,3")).1, "host 3 is named twice");
        assert_eq!((wrong("!3,!3"), wrong("!0-15")).1, "no host is left");
        assert_eq!(wrong("99999999999"), "\"99999999999\" names no hosts");
    }
}
