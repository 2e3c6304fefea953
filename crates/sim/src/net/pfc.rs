//! Priority flow control (IEEE 802.1Qbb): a switch that runs out of buffer tells the neighbour from
//! which packets of a class come to stop sending that class.
//!
//! Packets are counted by the link and the class by which they came. Over its threshold, `alpha`
//! times what is free of the shared buffer, a link is asked to pause; what arrives until it has
//! stopped goes to the headroom, which is set aside for each link and class.

use super::time::{LineRate, Ps};

/// The number of classes.
pub const CLASSES: usize = 8;

/// The length of a frame of flow control with preamble and gap, in bytes.
pub(super) const PAUSE_BYTES: u32 = 84;
/// A packet with a payload of 4096 bytes, in an Ethernet frame with preamble and gap.
pub(super) const LONGEST: u64 = 4206;

/// The properties of priority flow control.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PfcOptions {
    /// A link and class may hold this many times what is free of the shared buffer; twice as much
    /// for each doubling of the link's rate above the hosts', up to all of it.
    pub alpha: f64,
    /// Bytes that a link and class may hold in any case.
    pub reserve_bytes: u64,
    /// The link may go on when it holds so many bytes less than its threshold.
    pub resume_bytes: u64,
    /// Bytes of headroom for each link and class; `None`: what can arrive after the pause was sent.
    pub headroom_bytes: Option<u64>,
}

impl Default for PfcOptions {
    /// As HPCC's simulator has it: an `alpha` of 1/8, a reserve of 4 KB, an offset of 3 KB.
    fn default() -> PfcOptions {
        PfcOptions { alpha: 0.125, reserve_bytes: 4096, resume_bytes: 3072, headroom_bytes: None }
    }
}

impl PfcOptions {
    /// The `alpha` of a link with this rate, as HPCC's simulator has it: where hosts have 100 Gb/s,
    /// a link of 400 has four times theirs.
    pub(super) fn alpha_at(&self, bits: Option<u64>, hosts: u64) -> f64 {
        let (mut alpha, mut bits) = (self.alpha, bits.unwrap_or(0));
        while bits > hosts && alpha < 1.0 {
            alpha = (alpha * 2.0).min(1.0);
            bits /= 2;
        }
        alpha
    }

    /// The headroom of a link and class: what can come once the threshold is exceeded. Three of the
    /// longest packets: the one that exceeds it, one that comes while the pause waits for another
    /// that has begun to leave, and one that has begun to leave when the pause arrives. What comes
    /// while a frame of flow control leaves, for each class at most one. And what is on its way
    /// there and back.
    pub(super) fn headroom(&self, rate: LineRate, delay: Ps) -> u64 {
        self.headroom_bytes.unwrap_or_else(|| {
            let told = CLASSES as u64 * u64::from(PAUSE_BYTES);
            2 * rate.bytes_in(delay) + 3 * LONGEST + told
        })
    }
}

/// What one link's packets of one class take of the switch that it leads to.
#[derive(Clone, Copy, Debug, Default)]
struct Hold {
    shared: u64,
    headroom: u64,
    paused: bool,
}

/// What a link's packets take of the switch that it leads to, by class.
#[derive(Clone, Debug, Default)]
pub(super) struct Ingress {
    holds: [Hold; CLASSES],
    /// What is set aside for each class, in bytes.
    pub(super) headroom: u64,
    /// It may hold so many times what is free.
    alpha: f64,
}

/// What became of a packet that has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    /// It is in the shared buffer.
    Shared,
    /// It is in the headroom.
    Headroom,
    /// There is no room.
    Full,
}

impl Ingress {
    pub(super) fn new(headroom: u64, alpha: f64) -> Ingress {
        Ingress { holds: Default::default(), headroom, alpha }
    }

    /// The most bytes in the shared buffer, where `free` bytes are free.
    fn limit(&self, options: &PfcOptions, free: u64) -> u64 {
        options.reserve_bytes + (free as f64 * self.alpha) as u64
    }

    /// Counts a packet in.
    pub(super) fn enter(
        &mut self,
        options: &PfcOptions,
        class: u8,
        bytes: u64,
        free: u64,
    ) -> Entry {
        let limit = self.limit(options, free);
        let hold = &mut self.holds[usize::from(class)];
        if hold.shared + bytes <= limit && bytes <= free && hold.headroom == 0 {
            hold.shared += bytes;
            Entry::Shared
        } else if hold.headroom + bytes <= self.headroom {
            hold.headroom += bytes;
            Entry::Headroom
        } else {
            Entry::Full
        }
    }

    /// Is the link to be asked to pause? It is asked once.
    pub(super) fn pauses(&mut self, options: &PfcOptions, class: u8, free: u64) -> bool {
        let limit = self.limit(options, free);
        let hold = &mut self.holds[usize::from(class)];
        let pauses = !hold.paused && (hold.headroom > 0 || hold.shared > limit);
        hold.paused |= pauses;
        pauses
    }

    /// Counts a packet out. Returns how many of its bytes were in the shared buffer.
    pub(super) fn leave(&mut self, class: u8, bytes: u64) -> u64 {
        let hold = &mut self.holds[usize::from(class)];
        let headroom = bytes.min(hold.headroom);
        hold.headroom -= headroom;
        hold.shared -= bytes - headroom;
        bytes - headroom
    }

    /// May the link go on? It is told so once.
    pub(super) fn resumes(&mut self, options: &PfcOptions, class: u8, free: u64) -> bool {
        let limit = self.limit(options, free);
        let hold = &mut self.holds[usize::from(class)];
        let is_low = hold.shared == 0 || hold.shared + options.resume_bytes <= limit;
        let resumes = hold.paused && hold.headroom == 0 && is_low;
        hold.paused &= !resumes;
        resumes
    }

    /// Has the link been asked to pause, and not been told to go on since?
    pub(super) fn has_paused(&self, class: u8) -> bool {
        self.holds[usize::from(class)].paused
    }

    /// The link has not been asked to pause, whatever was said before.
    pub(super) fn forget_pauses(&mut self) {
        self.holds.iter_mut().for_each(|hold| hold.paused = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::time::US;

    #[test]
    fn a_link_pauses_and_goes_on_once() {
        let options = PfcOptions { reserve_bytes: 0, resume_bytes: 100, ..PfcOptions::default() };
        let mut ingress = Ingress::new(1500, options.alpha);
        // An eighth of 8000 is the threshold.
        assert_eq!(ingress.enter(&options, 3, 1000, 8000), Entry::Shared);
        assert!(!ingress.pauses(&options, 3, 8000));
        assert_eq!(ingress.enter(&options, 3, 1000, 8000), Entry::Headroom);
        assert!(ingress.pauses(&options, 3, 8000) && !ingress.pauses(&options, 3, 8000));
        assert_eq!(ingress.enter(&options, 3, 1000, 8000), Entry::Full);
        assert_eq!(ingress.enter(&options, 2, 1000, 8000), Entry::Shared, "another class");
        assert_eq!(ingress.leave(3, 1000), 0, "the headroom is freed first");
        assert!(!ingress.resumes(&options, 3, 8000), "not low enough");
        assert_eq!(ingress.leave(3, 1000), 1000);
        assert!(ingress.resumes(&options, 3, 8000) && !ingress.resumes(&options, 3, 8000));
    }

    #[test]
    fn faster_links_than_the_hosts_may_hold_more() {
        const G: u64 = 1_000_000_000;
        let options = PfcOptions::default();
        let at = |gigabits: u64| options.alpha_at(Some(gigabits * G), 100 * G);
        assert_eq!([25, 100, 200, 400].map(at), [0.125, 0.125, 0.25, 0.5]);
        assert_eq!([800, 1600, 100_000].map(at), [1.0; 3], "no more than there is");
        assert_eq!(options.alpha_at(None, 100 * G), 0.125);
        let much = PfcOptions { alpha: 2.0, ..options };
        assert_eq!(much.alpha_at(Some(400 * G), 100 * G), 2.0);
    }

    #[test]
    fn the_headroom_holds_what_is_on_its_way() {
        let headroom = PfcOptions::default().headroom(LineRate::gigabits(100), US);
        assert_eq!(headroom, 2 * 12_500 + 3 * 4206 + 8 * 84);
    }
}
