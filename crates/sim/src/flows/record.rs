//! Recording: queues and rates of all links over time, pauses, packets by chosen links.
//!
//! Samples are taken at fixed moments of simulated time and change nothing of what happens. A
//! series has a bounded length: when it is full, each two of its intervals become one.

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

/// What was recorded.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The time from sample to sample.
    pub every: Ps,
    /// Samples that were taken.
    pub samples: u64,
    /// Samples of each interval, but perhaps of the last.
    pub stride: u64,
    /// By link, as [`Net::link`] numbers them.
    pub links: Vec<LinkRecord>,
    /// Pauses, and packets.
    pub notes: Notes,
}

impl Record {
    /// The length of an interval in picoseconds.
    pub fn interval(&self) -> Ps {
        self.every.saturating_mul(self.stride)
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
    /// nothing may come long after, and queues were empty until then.
    pub(super) fn end_at(&mut self, end: Ps) {
        let samples = self.samples.min(end.div_ceil(self.every.max(1)));
        let idle = u32::try_from(self.samples - samples).unwrap_or(u32::MAX);
        let intervals = samples.div_ceil(self.stride.max(1)) as usize;
        for link in &mut self.links {
            link.queue.truncate(intervals);
            link.sent.truncate(intervals);
            if let Some(empty) = link.histogram.first_mut() {
                *empty = empty.saturating_sub(idle);
            }
        }
        self.samples = samples;
    }

    /// Adds what another part of the cluster has recorded.
    pub(super) fn add(&mut self, other: Record) {
        if self.links.is_empty() {
            *self = other;
            return;
        }
        for (link, other) in self.links.iter_mut().zip(other.links) {
            if !other.queue.is_empty() || other.usage != Usage::default() {
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
    /// The most intervals of a series.
    most: usize,
    start: Ps,
    /// The moment of the next sample.
    pub(super) next: Ps,
}

/// What all series may take, in bytes.
const MEMORY: usize = 256 << 20;
/// The most intervals of a series.
const INTERVALS: usize = 512;
/// The most kilobytes of queue that are told apart.
const KILOBYTES: usize = 4096;

impl Recorder {
    /// Records the links `own` of a network, from `start` on.
    pub(super) fn new(
        options: &RecordOptions,
        net: &mut Net,
        own: Vec<u32>,
        start: Ps,
    ) -> Recorder {
        net.note_pauses();
        options.captures.iter().for_each(|link| net.capture(*link));
        let links = vec![LinkRecord::default(); net.links() as usize];
        let each = size_of::<u64>() + size_of::<u32>();
        let most = (MEMORY / (each * links.len().max(1))).clamp(16, INTERVALS);
        let every = options.every.max(RecordOptions::SHORTEST);
        let record = Record { every, stride: 1, links, ..Record::default() };
        Recorder { record, own, most, start, next: start + every }
    }

    /// Takes the sample that is due, and, if all queues are empty, those up to `quiet` with it:
    /// nothing happens until then.
    pub(super) fn sample(&mut self, net: &Net, quiet: Ps) {
        let is_quiet = self.own.iter().all(|link| net.backlog(*link) == 0);
        let more = if is_quiet { quiet.saturating_sub(self.next) / self.record.every } else { 0 };
        let times = 1 + more;
        let Record { samples, stride, links, .. } = &mut self.record;
        let (first, last) = (*samples, *samples + more);
        while last / *stride >= self.most as u64 {
            *stride *= 2;
            self.own.iter().for_each(|link| thin(&mut links[*link as usize]));
        }
        let intervals = (first / *stride) as usize..=(last / *stride) as usize;
        for link in &self.own {
            let queue = net.backlog(*link);
            let record = &mut self.record.links[*link as usize];
            record.note(queue, times);
            for interval in intervals.clone() {
                record.set(interval, queue, net.sent(*link));
            }
        }
        self.record.samples += times;
        self.next += self.record.every * times;
    }

    /// What was recorded; times are from the start of the run.
    pub(super) fn finish(mut self, net: &mut Net) -> Record {
        for link in &self.own {
            self.record.links[*link as usize].usage = net.usage(*link);
        }
        self.record.notes = net.take_notes();
        self.record.notes.since(self.start);
        self.record
    }
}

impl LinkRecord {
    /// Counts samples with this queue.
    fn note(&mut self, queue: u64, times: u64) {
        let kilobytes = ((queue / 1000) as usize).min(KILOBYTES - 1);
        if self.histogram.len() <= kilobytes {
            self.histogram.resize(kilobytes + 1, 0);
        }
        let count = &mut self.histogram[kilobytes];
        *count = count.saturating_add(times.min(u64::from(u32::MAX)) as u32);
    }

    fn set(&mut self, interval: usize, queue: u64, sent: u64) {
        let queue = u32::try_from(queue).unwrap_or(u32::MAX);
        if self.queue.len() <= interval {
            self.queue.resize(interval + 1, 0);
            self.sent.resize(interval + 1, sent);
        }
        self.queue[interval] = self.queue[interval].max(queue);
        self.sent[interval] = sent;
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
    fn thinning_keeps_the_longest_queue_and_all_bytes() {
        let mut link = LinkRecord::default();
        for (i, queue) in [5, 9, 2, 1, 7].into_iter().enumerate() {
            link.set(i, queue, i as u64 * 100);
            link.note(queue * 1000, 1);
        }
        thin(&mut link);
        assert_eq!((link.queue, link.sent), (vec![9, 2, 7], vec![100, 300, 400]));
        assert_eq!(link.histogram, [0, 1, 1, 0, 0, 1, 0, 1, 0, 1]);
    }
}
