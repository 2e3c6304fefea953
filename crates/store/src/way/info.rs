//! What a store says of itself: counts, latencies, tablespaces, slow operations.
//!
//! An Info names a [`Section`] in its flags and where to go on as its argument; the answer's
//! version is where the next one goes on, or 0. Its rows ([`super::row`]) have numbers as u64,
//! little-endian; key and value are:
//!
//! - counts: the name; the number.
//! - latencies: way and operation, a byte each; how many there were, their sum, and the percentiles
//!   50, 99 and 99.9, in ns.
//! - tablespaces: the name; number, keys, bytes, quota (all ones: none), default expiry in ms (0:
//!   none), codec, and 1 if it evicts; for each size of its blocks: bytes of a block, blocks in
//!   use, blocks there are.
//! - slow operations: who asked; number, Unix time in s, µs that it took; then the client's name
//!   for itself and the arguments, each behind its length (u32).

use std::iter;

use remora::kernel::CallStatus;

use super::call::{ANSWER_LEN, AnswerHead, Call};
use super::row;
use crate::codec::Codec;
use crate::slab::ClassInfo;
use crate::stats::{Op, Slow, Stats, Way};
use crate::tablespace::{Eviction, TablespaceId, TablespaceInfo, TablespaceOptions};

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Section {
    /// Numbers with names.
    Counts = 0,
    /// Latencies by way and operation.
    Latencies = 1,
    /// Tablespaces, with the sizes of their blocks.
    Tablespaces = 2,
    /// The operations that took long, the newest first.
    Slow = 3,
}

impl Section {
    /// The section with that number.
    pub fn of(number: u32) -> Option<Section> {
        use Section::*;
        [Counts, Latencies, Tablespaces, Slow].into_iter().find(|s| *s as u32 == number)
    }
}

/// How long operations of a kind took that came by one way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LatencyInfo {
    /// The way in.
    pub way: Way,
    /// The operation.
    pub op: Op,
    /// How many there were.
    pub count: u64,
    /// Their sum, in ns.
    pub total_ns: u64,
    /// What half of them did not exceed, in ns.
    pub p50_ns: u64,
    /// What 99 % of them did not exceed, in ns.
    pub p99_ns: u64,
    /// What 99.9 % of them did not exceed, in ns.
    pub p999_ns: u64,
}

/// A tablespace, and its blocks by size.
pub type SpaceInfo = (TablespaceInfo, Vec<ClassInfo>);

/// A row, as it is written: its key, and the bytes of its value.
type Row = (Vec<u8>, Vec<u8>);

/// Where the answers come from.
pub(super) trait Source {
    /// Numbers with names, besides those of [`Source::stats`].
    fn counts(&self) -> Vec<(&'static str, u64)>;
    /// Tablespaces.
    fn tablespaces(&self) -> Vec<SpaceInfo>;
    /// What is counted by threads.
    fn stats(&self) -> &Stats;
}

/// Answers an Info.
///
/// # Errors
/// The section is unknown, or one row is longer than an answer.
pub(super) fn answer(
    source: &impl Source,
    call: &Call<'_>,
    room: usize,
    out: &mut Vec<u8>,
) -> Result<(), CallStatus> {
    let section = Section::of(call.flags).ok_or(CallStatus::BAD_PARAMS)?;
    let room = room.checked_sub(ANSWER_LEN).ok_or(CallStatus::TOO_LONG)?;
    let rows: Box<dyn Iterator<Item = Row>> = match section {
        Section::Counts => {
            let sums = source.stats().sums();
            let all = sums.entries().chain(source.counts());
            Box::new(all.map(|(name, value)| (name.into(), words(&[value]))))
        }
        Section::Latencies => Box::new(latencies(source.stats())),
        Section::Tablespaces => Box::new(source.tablespaces().into_iter().map(tablespace)),
        Section::Slow => Box::new(source.stats().slow(usize::MAX).into_iter().map(slow)),
    };
    let start = out.len();
    out.extend_from_slice(&[0; ANSWER_LEN]);
    let first = usize::try_from(call.argument).unwrap_or(usize::MAX);
    let (mut count, mut version) = (0, 0);
    for (key, value) in rows.skip(first) {
        if out.len() - start - ANSWER_LEN + row::ROW_HEAD + key.len() + value.len() > room {
            if count == 0 {
                return Err(CallStatus::TOO_LONG);
            }
            version = call.argument + u64::from(count);
            break;
        }
        let at = row::begin(&key, out);
        out.extend_from_slice(&value);
        row::end(at, key.len(), out);
        count += 1;
    }
    let head = AnswerHead { version, value_len: count, ..AnswerHead::default() };
    out[start..start + ANSWER_LEN].copy_from_slice(&head.to_bytes());
    Ok(())
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn latencies(stats: &Stats) -> impl Iterator<Item = Row> {
    let all = Way::ALL.into_iter().flat_map(|way| Op::ALL.map(|op| (way, op)));
    all.filter_map(|(way, op)| {
        let histogram = stats.histogram(way, op);
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| histogram.percentile_ns(share));
        let count = histogram.count();
        let value = words(&[count, histogram.total_ns(), p50, p99, p999]);
        (count > 0).then(|| (vec![way as u8, op as u8], value))
    })
}

fn tablespace((info, classes): SpaceInfo) -> Row {
    let TablespaceOptions { name, quota, eviction, default_expiry_ms, codec } = info.options;
    let mut value = words(&[
        info.id.0.into(),
        info.items,
        info.bytes,
        quota.unwrap_or(u64::MAX),
        default_expiry_ms.unwrap_or(0),
        codec.to_u16().into(),
        (eviction == Eviction::Clock).into(),
    ]);
    let classes = classes.iter().flat_map(|class| [class.size, class.used, class.blocks]);
    value.extend(classes.flat_map(u64::to_le_bytes));
    (name.into_bytes(), value)
}

fn slow(slow: Slow) -> Row {
    let mut value = words(&[slow.id, slow.at_s, slow.took_us]);
    for text in iter::once(slow.name.as_bytes()).chain(slow.arguments.iter().map(Vec::as_slice)) {
        value.extend_from_slice(&(text.len() as u32).to_le_bytes());
        value.extend_from_slice(text);
    }
    (slow.peer.into_bytes(), value)
}

/// Reads a row of [`Section::Counts`].
pub(crate) fn read_count(key: &[u8], value: &[u8]) -> Option<(String, u64)> {
    let ([number], []) = split_words(value)? else { return None };
    // It is shown to people: a hostile store chooses its bytes.
    Some((remora::printable(&String::from_utf8_lossy(key)), number))
}

/// Reads a row of [`Section::Latencies`].
pub(crate) fn read_latency(key: &[u8], value: &[u8]) -> Option<LatencyInfo> {
    let &[way, op] = key else { return None };
    let way = *Way::ALL.get(usize::from(way))?;
    let op = *Op::ALL.get(usize::from(op))?;
    let ([count, total_ns, p50_ns, p99_ns, p999_ns], []) = split_words(value)? else { return None };
    Some(LatencyInfo { way, op, count, total_ns, p50_ns, p99_ns, p999_ns })
}

/// Reads a row of [`Section::Tablespaces`].
pub(crate) fn read_tablespace(key: &[u8], value: &[u8]) -> Option<SpaceInfo> {
    let ([id, items, bytes, quota, expiry, codec, evicts], rest) = split_words(value)?;
    let options = TablespaceOptions {
        name: String::from_utf8_lossy(key).into_owned(),
        quota: (quota != u64::MAX).then_some(quota),
        eviction: if evicts == 1 { Eviction::Clock } else { Eviction::Never },
        default_expiry_ms: (expiry > 0).then_some(expiry),
        codec: Codec::from_u16(u16::try_from(codec).ok()?)?,
    };
    let id = TablespaceId(u16::try_from(id).ok()?);
    let (classes, rest) = rest.as_chunks::<24>();
    let class = |bytes: &[u8; 24]| {
        let ([size, used, blocks], _) = split_words(bytes)?;
        Some(ClassInfo { size, used, blocks })
    };
    let classes: Option<Vec<ClassInfo>> = classes.iter().map(class).collect();
    rest.is_empty().then_some((TablespaceInfo { id, options, items, bytes }, classes?))
}

/// Reads a row of [`Section::Slow`].
pub(crate) fn read_slow(key: &[u8], value: &[u8]) -> Option<Slow> {
    let ([id, at_s, took_us], mut rest) = split_words(value)?;
    let mut texts = Vec::new();
    while let Some((len, behind)) = rest.split_first_chunk::<4>() {
        let (text, behind) = behind.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        texts.push(text.to_vec());
        rest = behind;
    }
    if !rest.is_empty() || texts.is_empty() {
        return None;
    }
    let name = remora::printable(&String::from_utf8_lossy(&texts.remove(0)));
    let peer = remora::printable(&String::from_utf8_lossy(key));
    Some(Slow { id, at_s, took_us, arguments: texts, peer, name })
}

/// The first words, and the rest.
fn split_words<const N: usize>(bytes: &[u8]) -> Option<([u64; N], &[u8])> {
    let (words, rest) = bytes.split_at_checked(8 * N)?;
    let (words, _) = words.as_chunks::<8>();
    Some((std::array::from_fn(|at| u64::from_le_bytes(words[at])), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::way::row::each_row;

    #[test]
    fn what_a_store_names_does_not_steer_a_terminal() {
        let (name, number) = read_count(b"hits\x1b[2J\n", &words(&[7])).unwrap();
        assert_eq!((name.as_str(), number), ("hits?[2J?", 7));
        let value = [words(&[1, 2, 3]), 2u32.to_le_bytes().to_vec(), b"\x1bc".to_vec()].concat();
        let slow = read_slow(b"\x1b]0;x\x07", &value).unwrap();
        assert_eq!((slow.peer.as_str(), slow.name.as_str()), ("?]0;x?", "?c"));
    }

    struct Told {
        stats: Stats,
        spaces: Vec<SpaceInfo>,
    }

    impl Source for Told {
        fn counts(&self) -> Vec<(&'static str, u64)> {
            vec![("used_bytes", 77)]
        }
        fn tablespaces(&self) -> Vec<SpaceInfo> {
            self.spaces.clone()
        }
        fn stats(&self) -> &Stats {
            &self.stats
        }
    }

    fn told() -> Told {
        let stats = Stats::default();
        let counts = stats.thread();
        counts.hits.add(5);
        counts.latencies(Way::Kernel, Op::Scan).record(1 << 20);
        stats.set_slow_us(0);
        for n in 0..40u8 {
            let arguments: [&[u8]; 2] = [b"get", &[n; 100]];
            stats.note(n.into(), 9, arguments.into_iter(), "queue pair 7", "me");
        }
        let space = |n: u16| {
            let options = TablespaceOptions {
                name: format!("space {n}"),
                quota: (n.is_multiple_of(2)).then_some(1 << 30),
                eviction: if n.is_multiple_of(3) { Eviction::Clock } else { Eviction::Never },
                default_expiry_ms: (n.is_multiple_of(5)).then_some(1000),
                codec: if n.is_multiple_of(7) { Codec::Lz4 { head: n } } else { Codec::None },
            };
            let classes = (0..u64::from(n % 4)).map(|size| ClassInfo { size, used: 1, blocks: 2 });
            let info = TablespaceInfo { id: TablespaceId(n), options, items: 3, bytes: 4 };
            (info, classes.collect())
        };
        Told { stats, spaces: (0..100).map(space).collect() }
    }

    /// All rows of a section, by answers of at most `room` bytes.
    fn all<T>(
        section: Section,
        room: usize,
        read: impl Fn(&[u8], &[u8]) -> Option<T>,
    ) -> (Vec<T>, usize) {
        let (told, mut rows, mut cursor, mut answers) = (told(), Vec::new(), 0, 0);
        loop {
            let call = Call { flags: section as u32, argument: cursor, ..Call::default() };
            let mut out = Vec::new();
            answer(&told, &call, room, &mut out).unwrap();
            assert!(out.len() <= room);
            let (head, rest) = AnswerHead::parse(&out).unwrap();
            let mut each = |key: &[u8], value: &[u8]| rows.push(read(key, value).unwrap());
            each_row(rest, head.value_len, &mut each).unwrap();
            (cursor, answers) = (head.version, answers + 1);
            if cursor == 0 {
                return (rows, answers);
            }
        }
    }

    #[test]
    fn sections_come_back_as_they_are_in_one_answer_or_many() {
        for room in [600, 1 << 20] {
            let (counts, _) = all(Section::Counts, room, read_count);
            assert!(
                counts.contains(&("hits".into(), 5)) && counts.contains(&("used_bytes".into(), 77))
            );
            let (latencies, _) = all(Section::Latencies, room, read_latency);
            assert_eq!((latencies.len(), latencies[0].count), (1, 1));
            assert_eq!((latencies[0].way, latencies[0].op), (Way::Kernel, Op::Scan));
            assert!(latencies[0].p50_ns >= 1 << 20);
            let (spaces, answers) = all(Section::Tablespaces, room, read_tablespace);
            assert_eq!((spaces, answers > 1), (told().spaces, room == 600));
            let (slow, _) = all(Section::Slow, room, read_slow);
            assert_eq!(slow, told().stats.slow(100));
        }
    }

    #[test]
    fn what_does_not_fit_and_what_is_unknown_is_refused() {
        let (told, mut out) = (told(), Vec::new());
        let slow = Call { flags: Section::Slow as u32, ..Call::default() };
        assert_eq!(answer(&told, &slow, 100, &mut out), Err(CallStatus::TOO_LONG));
        let unknown = Call { flags: 4, ..Call::default() };
        assert_eq!(answer(&told, &unknown, 1000, &mut out), Err(CallStatus::BAD_PARAMS));
        for len in 0..56 {
            assert!(read_tablespace(b"name", &[1; 56][..len]).is_none());
            assert!(read_slow(b"", &[0xFF; 56][..len]).is_none());
        }
    }
}
