//! Recording: queues and rates of all links over time, pauses, packets by chosen links; and what
//! messages that are under way wait for at their senders.
//!
//! Samples are taken at fixed moments of simulated time, from about when the first flow begins, and
//! change nothing of what happens. A series has a bounded length: when it is full, each two of its
//! intervals become one. While nothing happens on a link nothing is added to its series: a timer
//! that rings for nothing, long after, must not make them coarse.

use remora_nic::SendProgress;

use crate::net::time::{NS, Ps};
use crate::net::{Net, Notes, Usage};

/// What is recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordOptions {
    /// The time from sample to sample in picoseconds, at least [`RecordOptions::SHORTEST`].
    pub every: Ps,
    /// The links whose packets are kept, by number.
    pub captures: Vec<u32>,
}

impl RecordOptions {
    /// The shortest time from sample to sample: 10 ns.
    pub const SHORTEST: Ps = 10 * NS;
}

/// A link over time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LinkRecord {
    /// By interval: the longest queue that a sample has found, in bytes.
    pub queue: Vec<u32>,
    /// By interval: the bytes that the port has sent since the start, at its end.
    pub sent: Vec<u64>,
    /// By kilobyte (1000 bytes) of queue: in how many samples it was so long.
    pub histogram: Vec<u32>,
    /// What it was used for in the whole run.
    pub usage: Usage,
}

/// What messages have waited for: of all together, in how many samples one did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MessageWaits {
    /// For their sender's port, to send by it or in line for it.
    pub turn: u64,
    /// Held by the window or the rate, at least in part.
    pub leave: u64,
    /// For their last acknowledges or answers: all has left.
    pub peer: u64,
}

impl core::ops::AddAssign for MessageWaits {
    fn add_assign(&mut self, other: MessageWaits) {
        self.turn += other.turn;
        self.leave += other.leave;
        self.peer += other.peer;
    }
}

/// What was recorded.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The time from sample to sample.
    pub every: Ps,
    /// The moment before the first interval, from the start of the run.
    pub first: Ps,
    /// Samples that were taken.
    pub samples: u64,
    /// Samples of each interval, but perhaps of the last.
    pub stride: u64,
    /// By link, as [`Net::link`] numbers them.
    pub links: Vec<LinkRecord>,
    /// What messages have waited for, from their posts to their ends.
    pub waits: MessageWaits,
    /// Pauses, and packets.
    pub notes: Notes,
}

impl Record {
    /// The length of an interval in picoseconds.
    pub fn interval(&self) -> Ps {
        self.every.saturating_mul(self.stride)
    }

    /// The moment of the last sample, from the start of the run.
    pub fn last(&self) -> Ps {
        self.first.saturating_add(self.every.saturating_mul(self.samples))
    }

    /// The end of each interval, from the start of the run.
    pub fn ends(&self) -> impl Iterator<Item = Ps> {
        let end = |i| self.first.saturating_add(self.interval().saturating_mul(i));
        (1..).map(end).map(|end| end.min(self.last()))
    }

    /// The longest queue that histograms tell apart, in kilobytes: longer ones count as it.
    pub fn most_kilobytes(&self) -> usize {
        (MEMORY / (size_of::<u32>() * self.links.len().max(1))).clamp(4096, 1 << 20) - 1
    }

    /// The most intervals of a series.
    fn most(&self) -> u64 {
        let each = size_of::<u64>() + size_of::<u32>();
        (MEMORY / (each * self.links.len().max(1))).clamp(16, INTERVALS) as u64
    }

    /// Has series that are full make room for a sample.
    fn make_room(&mut self, sample: u64) {
        while sample / self.stride >= self.most() {
            self.coarsen(2 * self.stride);
        }
    }

    /// Makes one interval of each two until they have so many samples.
    fn coarsen(&mut self, stride: u64) {
        while self.stride < stride {
            self.stride *= 2;
            self.links.iter_mut().for_each(thin);
        }
    }

    /// The rate of a link by interval, in bits per second.
    pub fn rates(&self, link: usize) -> Vec<f64> {
        let sent = &self.links[link].sent;
        let before = core::iter::once(&0).chain(sent);
        let last = sent.len().saturating_sub(1);
        let rate = |(i, (now, before)): (usize, (&u64, &u64))| {
            // The last interval may be shorter.
            let samples =
                if i == last { self.samples - self.stride * i as u64 } else { self.stride };
            now.saturating_sub(*before) as f64 * 8e12 / (self.every.max(1) * samples.max(1)) as f64
        };
        sent.iter().zip(before).enumerate().map(rate).collect()
    }

    /// How long each link was paused in all, in picoseconds, up to `end`.
    pub fn paused(&self, end: Ps) -> Vec<Ps> {
        let mut since = vec![[None; 8]; self.links.len()];
        let mut sum = vec![0; self.links.len()];
        for note in &self.notes.pauses {
            let since = &mut since[note.link as usize][usize::from(note.class & 7)];
            if note.paused {
                since.get_or_insert(note.at);
            } else if let Some(begun) = since.take() {
                sum[note.link as usize] += note.at - begun;
            }
        }
        for (sum, since) in sum.iter_mut().zip(&since) {
            *sum += since.iter().flatten().map(|begun| end.saturating_sub(*begun)).sum::<Ps>();
        }
        sum
    }

    /// Leaves out the samples later than `end`, when nothing was left to send: timers that ring for
    /// nothing may come long after, and queues were empty until then. Up to `end` series are whole.
    pub(super) fn end_at(&mut self, end: Ps) {
        let samples = end.saturating_sub(self.first).div_ceil(self.every.max(1));
        let samples = self.samples.min(samples);
        let idle = u32::try_from(self.samples - samples).unwrap_or(u32::MAX);
        self.make_room(samples.saturating_sub(1));
        let intervals = samples.div_ceil(self.stride.max(1)) as usize;
        for link in &mut self.links {
            link.fill(intervals);
            link.queue.truncate(intervals);
            link.sent.truncate(intervals);
            if let Some(empty) = link.histogram.first_mut() {
                *empty = empty.saturating_sub(idle);
            }
        }
        self.samples = samples;
    }

    /// Adds what another part of the cluster has recorded.
    pub(super) fn add(&mut self, mut other: Record) {
        other.waits += self.waits;
        if self.links.is_empty() {
            *self = other;
            return;
        }
        self.waits = other.waits;
        // A part on which less has happened has been thinned less.
        let stride = self.stride.max(other.stride);
        self.coarsen(stride);
        other.coarsen(stride);
        for (link, mut other) in self.links.iter_mut().zip(other.links) {
            // A link's series are one part's; what was lost on it may be another's.
            other.usage += link.usage;
            if other.histogram.is_empty() {
                link.usage = other.usage;
            } else {
                *link = other;
            }
        }
        self.notes.add(other.notes);
    }
}

/// Records one part of a cluster.
#[derive(Debug)]
pub(super) struct Recorder {
    record: Record,
    /// The links of this part.
    own: Vec<u32>,
    start: Ps,
    /// The moment of the next sample.
    pub(super) next: Ps,
}

/// What all series may take, in bytes.
const MEMORY: usize = 256 << 20;
/// The most intervals of a series.
const INTERVALS: usize = 512;

impl Recorder {
    /// Records the links `own` of a network whose run begins at `start`, from about `first` behind
    /// that on, when the first flow begins.
    pub(super) fn new(
        options: &RecordOptions,
        net: &mut Net,
        own: Vec<u32>,
        (start, first): (Ps, Ps),
    ) -> Recorder {
        net.note_pauses();
        options.captures.iter().for_each(|link| net.capture(*link));
        let links = vec![LinkRecord::default(); net.links() as usize];
        let every = options.every.max(RecordOptions::SHORTEST);
        let first = first - first % every;
        let record = Record { every, first, stride: 1, links, ..Record::default() };
        Recorder { record, own, start, next: start + first + every }
    }

    /// Takes the sample that is due, and, if no port sends, those up to `quiet` with it: nothing
    /// happens until then, and what waits goes on waiting. Returns how many were taken.
    pub(super) fn sample(&mut self, net: &Net, quiet: Ps) -> u64 {
        let is_quiet = self.own.iter().all(|link| !net.sends(*link));
        let is_empty = is_quiet && self.own.iter().all(|link| net.backlog(*link) == 0);
        let more = if is_quiet { quiet.saturating_sub(self.next) / self.record.every } else { 0 };
        let times = 1 + more;
        let links = &self.record.links;
        let is_idle = |link: &u32| links[*link as usize].last_sent() == net.sent(*link);
        let changes = !is_empty || !self.own.iter().all(is_idle);
        // Behind its end a series has no queues.
        let noted = [0, if is_empty { 0 } else { more }].map(|more| self.record.samples + more);
        if changes {
            self.record.make_room(noted[1]);
        }
        let [first, last] = noted.map(|sample| (sample / self.record.stride) as usize);
        let most = self.record.most_kilobytes();
        for link in &self.own {
            let queue = net.backlog(*link);
            let record = &mut self.record.links[*link as usize];
            record.note(((queue / 1000) as usize).min(most), times);
            if changes {
                (first..=last).for_each(|i| record.set(i, queue, net.sent(*link)));
            }
        }
        self.record.samples += times;
        self.next += self.record.every * times;
        times
    }

    /// Notes what a message has waited for in so many samples.
    pub(super) fn note_wait(&mut self, progress: SendProgress, times: u64) {
        let MessageWaits { turn, leave, peer } = &mut self.record.waits;
        let count = match progress {
            SendProgress::Turn => turn,
            SendProgress::Leave => leave,
            SendProgress::Peer => peer,
        };
        *count += times;
    }

    /// What was recorded; times are from the start of the run.
    pub(super) fn finish(mut self, net: &mut Net) -> Record {
        // What is lost on a link to this part is lost here, at its end.
        for (number, link) in (0..).zip(&mut self.record.links) {
            link.usage.dropped = net.usage(number).dropped;
        }
        for link in &self.own {
            self.record.links[*link as usize].usage = net.usage(*link);
        }
        self.record.notes = net.take_notes();
        self.record.notes.since(self.start);
        self.record
    }
}

impl LinkRecord {
    /// Counts samples with a queue of so many kilobytes.
    fn note(&mut self, kilobytes: usize, times: u64) {
        if self.histogram.len() <= kilobytes {
            self.histogram.resize(kilobytes + 1, 0);
        }
        let count = &mut self.histogram[kilobytes];
        *count = count.saturating_add(times.min(u64::from(u32::MAX)) as u32);
    }

    fn set(&mut self, interval: usize, queue: u64, sent: u64) {
        let queue = u32::try_from(queue).unwrap_or(u32::MAX);
        self.fill(interval + 1);
        self.queue[interval] = self.queue[interval].max(queue);
        self.sent[interval] = sent;
    }

    /// The bytes that had left at the end of the series.
    fn last_sent(&self) -> u64 {
        self.sent.last().copied().unwrap_or(0)
    }

    /// Makes the series so long, if they are shorter: nothing has happened since they end.
    fn fill(&mut self, intervals: usize) {
        if self.queue.len() < intervals {
            let sent = self.last_sent();
            self.queue.resize(intervals, 0);
            self.sent.resize(intervals, sent);
        }
    }
}

/// Makes one interval of each two.
fn thin(link: &mut LinkRecord) {
    link.queue = link.queue.chunks(2).map(|two| two.iter().copied().max().unwrap_or(0)).collect();
    link.sent = link.sent.chunks(2).filter_map(|two| two.last().copied()).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sampled_after_the_end_is_left_out() {
        let link = LinkRecord {
            queue: vec![9, 2, 0, 0],
            sent: vec![10, 20, 20, 20],
            histogram: vec![6, 2],
            usage: Usage::default(),
        };
        let mut record =
            Record { every: 10, samples: 8, stride: 2, links: vec![link], ..Record::default() };
        record.end_at(31);
        assert_eq!((record.samples, record.links[0].queue.len()), (4, 2));
        assert_eq!(
            (&record.links[0].sent, &record.links[0].histogram),
            (&vec![10, 20], &vec![2, 2])
        );
        record.end_at(1000);
        assert_eq!(record.samples, 4, "there are no later ones");
    }

    #[test]
    fn what_is_quiet_up_to_the_end_is_there() {
        let record = |sent: &[u64], samples, stride| {
            let (queue, sent, histogram) = (vec![0; sent.len()], sent.to_vec(), vec![samples]);
            let link = LinkRecord { queue, sent, histogram, usage: Usage::default() };
            let (links, samples) = (vec![link], samples.into());
            Record { every: 10, first: 100, samples, stride, links, ..Record::default() }
        };
        let mut one = record(&[10, 20], 9000, 1);
        one.end_at(145);
        assert_eq!(
            (one.samples, one.stride, &one.links[0].sent),
            (5, 1, &vec![10, 20, 20, 20, 20])
        );
        assert_eq!((one.links[0].histogram[0], one.last()), (5, 150));
        let mut long = record(&[10, 20], 9000, 1);
        long.end_at(100 + 10 * 1024);
        assert_eq!((long.samples, long.stride, long.links[0].sent.len()), (1024, 2, 512));
        // Where less has happened, series are as coarse as those of other parts.
        let mut one = Record { links: vec![LinkRecord::default(); 2], ..record(&[], 9000, 4) };
        let mut fine = record(&[1, 2, 3, 4, 5], 9000, 1);
        fine.links.insert(0, LinkRecord::default());
        one.add(fine);
        assert_eq!((one.stride, &one.links[1].sent), (4, &vec![4, 5]));
    }

    #[test]
    fn thinning_keeps_the_longest_queue_and_all_bytes() {
        let mut link = LinkRecord::default();
        for (i, queue) in [5, 9, 2, 1, 7].into_iter().enumerate() {
            link.set(i, queue, i as u64 * 100);
            link.note(queue as usize, 1);
        }
        thin(&mut link);
        assert_eq!((link.queue, link.sent), (vec![9, 2, 7], vec![100, 300, 400]));
        assert_eq!(link.histogram, [0, 1, 1, 0, 0, 1, 0, 1, 0, 1]);
    }
}
