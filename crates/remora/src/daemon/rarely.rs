//! Answers that take time to make, in which the card stands, and that any client may ask for.

use std::time::Duration;

use remora_nic::Time;

/// An answer about fewer parts of the card than this is made anew each time.
const FEW: usize = 512;
/// For how long an answer is good for each of its parts: a hundred times as long as one takes.
const EACH: Duration = Duration::from_micros(5);

/// An answer about many parts of the card, which is made again only when so much time has passed
/// that making it takes some hundredth of that, however often clients ask.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rarely<T> {
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
    pub(super) fn get(&self, now: Time) -> Option<T> {
        self.last.as_ref().filter(|(_, until)| now < *until).map(|(answer, _)| answer.clone())
    }

    /// Keeps an answer about so many parts, and returns it.
    pub(super) fn put(&mut self, answer: T, parts: usize, now: Time) -> T {
        let time = EACH.saturating_mul(u32::try_from(parts).unwrap_or(u32::MAX));
        self.last = (parts >= FEW).then(|| (answer.clone(), now + time));
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
        assert_eq!(rarely.put('a', 1000, Time(7)), 'a');
        let last = Time(7) + 1000 * EACH;
        assert_eq!(
            [Time(7), Time(last.0 - 1), last].map(|at| rarely.get(at)),
            [Some('a'), Some('a'), None]
        );
        rarely.put('b', FEW - 1, last);
        assert_eq!(rarely.get(last), None, "it costs little");
    }
}
