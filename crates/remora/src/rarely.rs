//! Answers that take time to make, in which the card stands, and that are asked for often.

use std::time::Duration;

use remora_nic::Time;

/// An answer about fewer parts of the card than this is made anew each time.
const FEW: usize = 512;
/// For how long an answer is good at least.
const LEAST: Duration = Duration::from_secs(1);
/// For how long it is good for each of its parts: a hundred times as long as one takes.
const EACH: Duration = Duration::from_micros(5);

/// An answer about many parts of the card, which is made again once a second at most, and only when
/// so much time has passed that making it takes some hundredth of that, however often it is asked
/// for.
#[derive(Clone, Copy, Debug)]
pub struct Rarely<T> {
    /// The answer, and until when it is good.
    last: Option<(T, Time)>,
}

impl<T> Default for Rarely<T> {
    fn default() -> Rarely<T> {
        Rarely { last: None }
    }
}

impl<T: Clone> Rarely<T> {
    /// The last answer, if it is good still.
    pub fn get(&self, now: Time) -> Option<T> {
        self.last.as_ref().filter(|(_, until)| now < *until).map(|(answer, _)| answer.clone())
    }

    /// Keeps an answer about so many parts, unless these are few, and returns it.
    pub(crate) fn put(&mut self, answer: T, parts: usize, now: Time) -> T {
        match parts >= FEW {
            true => self.keep(answer, parts, now),
            false => answer,
        }
    }

    /// Keeps an answer about so many parts, and returns it.
    pub fn keep(&mut self, answer: T, parts: usize, now: Time) -> T {
        let time = EACH.saturating_mul(u32::try_from(parts).unwrap_or(u32::MAX));
        self.last = Some((answer.clone(), now + time.max(LEAST)));
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_about_many_parts_is_good_for_a_while() {
        let mut rarely = Rarely::default();
        assert_eq!(rarely.get(Time(0)), None);
        for (parts, span) in [(FEW, LEAST), (1_000_000, 1_000_000 * EACH)] {
            assert_eq!(rarely.put('a', parts, Time(7)), 'a');
            let last = Time(7) + span;
            let answers = [Time(7), Time(last.0 - 1), last].map(|at| rarely.get(at));
            assert_eq!(answers, [Some('a'), Some('a'), None], "{parts} parts");
        }
        let mut rarely = Rarely::default();
        assert_eq!((rarely.put('b', FEW - 1, Time(7)), rarely.get(Time(7))), ('b', None));
        assert_eq!((rarely.keep('b', 1, Time(7)), rarely.get(Time(8))), ('b', Some('b')));
    }
}
