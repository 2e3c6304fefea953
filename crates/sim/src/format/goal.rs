//! GOAL schedules as text (Hoefler, Schneider, Lumsdaine: Group Operation Assembly Language, ICPP
//! '09), as LogGOPSim and ATLAHS take them.
//!
//! `num_ranks 4`, then for each rank `rank 0 { … }` with lines `l1: send 10b to 1 tag 5`,
//! `l2: recv 10b from 3 tag 5`, `l3: calc 200` (nanoseconds), `l3 requires l2`, `l1 irequires l3`;
//! `cpu` and `nic` may stand behind an operation. A rank is a host.
//!
//! A send is a flow; it ends when it is acknowledged. A receive ends when the send that it matches
//! has arrived: in order by source and tag. `-1` matches any; which one is settled before the run,
//! among those that do not wait for the receive. Calculations of one processor of a rank take
//! turns, in the order in which they are ready. What LogGOPS adds for the processor to send and
//! receive (`o`, `g`) is left out: cards do that work here.

use std::collections::{BTreeMap, BTreeSet};

use super::order::order;
use super::pairs::{End, Unpaired, pair};
use super::words::{FormatError, short};
use crate::flows::{Flow, Work};
use crate::net::Ps;
use crate::net::time::NS;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Send {
        to: u32,
        bytes: u64,
        tag: u32,
    },
    /// `None`: from any source, with any tag.
    Recv {
        from: Option<u32>,
        bytes: u64,
        tag: Option<u32>,
    },
    Calc {
        span: Ps,
        cpu: u32,
    },
}

/// Any source, any tag.
const ANY: &str = "-1";
/// What waits for more flows than this gets a wait of its own, which others share.
const MANY: usize = 8;

#[derive(Clone, Debug)]
struct Op {
    line: usize,
    rank: u32,
    what: What,
    /// Operations that must have ended, or only begun, before it begins.
    requires: Vec<u32>,
    irequires: Vec<u32>,
}

/// What is read so far.
#[derive(Default)]
struct Schedule {
    ops: Vec<Op>,
    ranks: Option<u32>,
    /// The rank whose lines are read, and its labels.
    rank: Option<u32>,
    labels: BTreeMap<String, u32>,
    in_comment: bool,
}

/// Reads a schedule for a network of so many hosts.
///
/// # Errors
/// If it is none, has more ranks than there are hosts, or sends and receives that do not match.
pub fn read(text: &str, hosts: u32) -> Result<Vec<Flow>, FormatError> {
    read_whole(text, hosts).map(|(flows, _)| flows)
}

/// As [`read`], and whether messages are without bytes: a flow has one at least, and so have these.
///
/// # Errors
/// See [`read`].
pub fn read_whole(text: &str, hosts: u32) -> Result<(Vec<Flow>, bool), FormatError> {
    let schedule = parse(text, hosts)?;
    let is_empty = |op: &Op| matches!(op.what, What::Send { bytes: 0, .. });
    let has_empty = schedule.ops.iter().any(is_empty);
    Ok((schedule.flows()?, has_empty))
}

fn parse(text: &str, hosts: u32) -> Result<Schedule, FormatError> {
    let mut schedule = Schedule::default();
    let mut last = 1;
    for (line, text) in (1..).zip(text.lines()) {
        last = line;
        let text = schedule.without_comments(text);
        // Braces and colons may stand beside other words.
        let text = text.replace('{', " { ").replace('}', " } ").replace(':', " : ");
        let words: Vec<&str> = text.split_whitespace().collect();
        for words in statements(&words) {
            schedule.read_statement(line, words, hosts)?;
        }
        if schedule.ops.len() > Flow::MOST {
            let gib = (schedule.ops.len() * Flow::MEMORY) >> 30;
            let what = format!("so many operations need more than {gib} GiB of memory");
            return Err(FormatError::new(line, what));
        }
    }
    if schedule.rank.is_some() || schedule.in_comment {
        return Err(FormatError::new(last, "the file ends within a rank or a comment"));
    }
    Ok(schedule)
}

/// A line's statements: braces end them, too.
fn statements<'a>(words: &'a [&'a str]) -> impl Iterator<Item = &'a [&'a str]> {
    let ends = words.split_inclusive(|word| *word == "{");
    ends.flat_map(|words| words.chunk_by(|a, b| *a != "}" && *b != "}"))
}

impl Schedule {
    fn without_comments(&mut self, mut text: &str) -> String {
        let mut kept = String::new();
        loop {
            if self.in_comment {
                let Some(end) = text.find("*/") else { return kept };
                (text, self.in_comment) = (&text[end + 2..], false);
            }
            let line_end = text.find("//").unwrap_or(text.len());
            match text[..line_end].find("/*") {
                Some(begin) => {
                    kept.push_str(&text[..begin]);
                    (text, self.in_comment) = (&text[begin + 2..], true);
                }
                None => {
                    kept.push_str(&text[..line_end]);
                    return kept;
                }
            }
        }
    }

    fn read_statement(
        &mut self,
        line: usize,
        words: &[&str],
        hosts: u32,
    ) -> Result<(), FormatError> {
        let wrong = |what: String| Err(FormatError::new(line, what));
        match (self.rank, words) {
            (None, ["num_ranks", n]) => {
                if self.ranks.is_some() {
                    return wrong("num_ranks is there twice".into());
                }
                let ranks: u32 = number(line, n)?;
                if ranks == 0 || ranks > hosts {
                    return wrong(format!("{ranks} ranks do not fit {hosts} hosts"));
                }
                self.ranks = Some(ranks);
            }
            (None, ["rank", n, "{"]) => {
                let rank: u32 = number(line, n)?;
                if self.ranks.is_none_or(|ranks| rank >= ranks) {
                    return wrong(format!("there is no rank {rank}: see num_ranks"));
                }
                self.rank = Some(rank);
                self.labels.clear();
            }
            (Some(_), ["}"]) => self.rank = None,
            (Some(_), [a, "requires", b]) => {
                let (a, b) = (self.label(line, a)?, self.label(line, b)?);
                self.ops[a as usize].requires.push(b);
            }
            (Some(_), [a, "irequires", b]) => {
                let (a, b) = (self.label(line, a)?, self.label(line, b)?);
                self.ops[a as usize].irequires.push(b);
            }
            (Some(rank), [label, ":", rest @ ..]) => {
                let op = self.ops.len() as u32;
                if self.labels.insert((*label).to_owned(), op).is_some() {
                    return wrong(format!("there are two labels {}", short(label)));
                }
                self.read_op(line, rank, rest)?;
            }
            (Some(rank), words) => self.read_op(line, rank, words)?,
            _ => return wrong(format!("\"{}\" is not expected here", short(words[0]))),
        }
        Ok(())
    }

    fn label(&self, line: usize, name: &str) -> Result<u32, FormatError> {
        let what = || format!("there is no label {} in this rank so far", short(name));
        self.labels.get(name).copied().ok_or_else(|| FormatError::new(line, what()))
    }

    fn read_op(&mut self, line: usize, rank: u32, words: &[&str]) -> Result<(), FormatError> {
        let wrong = || {
            let what = "an operation is `send 1b to 2`, `recv 1b from 2` or `calc 100`";
            FormatError::new(line, what)
        };
        let peer = |word: &str| {
            let peer = number::<u32>(line, word)?;
            let exists = self.ranks.is_some_and(|ranks| peer < ranks);
            let what = || format!("there is no rank {peer}");
            if exists { Ok(peer) } else { Err(FormatError::new(line, what())) }
        };
        let message = |kind: &str, len: &str, rest: &[&str]| {
            let (len, rest) = match *rest {
                ["b", ref rest @ ..] => (Some(len), rest),
                _ => (len.strip_suffix('b'), rest),
            };
            let bytes = number(line, len.ok_or_else(wrong)?)?;
            match *rest {
                ["to", ..] if kind == "send" && bytes > Flow::LONGEST => {
                    let what = format!("a send of {bytes} bytes: the longest is {}", Flow::LONGEST);
                    Err(FormatError::new(line, what))
                }
                ["to", to, ref rest @ ..] if kind == "send" => {
                    let what = What::Send { to: peer(to)?, bytes, tag: 0 };
                    options(line, what, rest)
                }
                ["from", from, ref rest @ ..] if kind == "recv" => {
                    let from = if from == ANY { None } else { Some(peer(from)?) };
                    options(line, What::Recv { from, bytes, tag: Some(0) }, rest)
                }
                _ => Err(wrong()),
            }
        };
        let what = match *words {
            [kind @ ("send" | "recv"), len, ref rest @ ..] => message(kind, len, rest)?,
            ["calc", span, ref rest @ ..] => {
                let span: u64 = number(line, span)?;
                if span > Flow::LATEST / NS {
                    return Err(FormatError::new(line, "a calculation of more than 1000 s"));
                }
                options(line, What::Calc { span: span * NS, cpu: 0 }, rest)?
            }
            _ => return Err(wrong()),
        };
        let (requires, irequires) = (Vec::new(), Vec::new());
        self.ops.push(Op { line, rank, what, requires, irequires });
        Ok(())
    }

    /// By receive: the send that it matches.
    fn matches(&self, depends: &[Vec<u32>]) -> Result<BTreeMap<u32, u32>, FormatError> {
        let end = |op: &Op| match op.what {
            What::Send { to, tag, .. } => End::Send { from: op.rank, to, tag },
            What::Recv { from, tag, .. } => End::Recv { at: op.rank, from, tag },
            What::Calc { .. } => End::Neither,
        };
        let ends: Vec<End> = self.ops.iter().map(end).collect();
        let found = pair(&ends, depends).map_err(|unpaired| {
            let (op, what) = match unpaired {
                Unpaired::Recv(op) => (op, "no send matches this recv"),
                Unpaired::Send(op) => (op, "no recv matches this send"),
            };
            FormatError::new(self.ops[op as usize].line, what)
        })?;
        found.iter().try_for_each(|(recv, send)| self.check_length(*recv, *send))?;
        Ok(found)
    }

    /// A receive must have room for the send that it matches.
    fn check_length(&self, recv: u32, send: u32) -> Result<(), FormatError> {
        let (recv, send) = (&self.ops[recv as usize], &self.ops[send as usize]);
        match (recv.what, send.what) {
            (What::Recv { bytes, .. }, What::Send { bytes: sent, .. }) if bytes < sent => {
                let what = format!(
                    "this recv is of {bytes} bytes, but the send that it matches, in line {}, of \
                     {sent}",
                    send.line
                );
                Err(FormatError::new(recv.line, what))
            }
            _ => Ok(()),
        }
    }

    fn flows(self) -> Result<Vec<Flow>, FormatError> {
        let on = |op: &Op| op.requires.iter().chain(&op.irequires).copied().collect();
        let mut depends: Vec<Vec<u32>> = self.ops.iter().map(on).collect();
        let matches = self.matches(&depends)?;
        matches.iter().for_each(|(recv, send)| depends[*recv as usize].push(*send));
        let order = order(&depends).map_err(|op| {
            FormatError::new(self.ops[op].line, "this operation waits for itself, by way of others")
        })?;
        let mut built = Built { flows: Vec::new(), begins: vec![Vec::new(); self.ops.len()] };
        let mut ends: Vec<Vec<u32>> = vec![Vec::new(); self.ops.len()];
        let awaited: BTreeSet<u32> =
            self.ops.iter().flat_map(|op| &op.irequires).copied().collect();
        for i in order {
            let op = &self.ops[i as usize];
            let mut after: Vec<u32> = Vec::new();
            op.requires.iter().for_each(|other| after.extend(&ends[*other as usize]));
            op.irequires.iter().for_each(|other| after.extend(&built.begins[*other as usize]));
            after = built.few(op.rank, after);
            let flow = built.flows.len() as u32;
            built.begins[i as usize] = after.clone();
            match op.what {
                What::Send { to, bytes, .. } if to != op.rank => {
                    let message = Flow::new(op.rank, to, bytes.max(1), 0);
                    built.flows.push(Flow { after, ..message });
                    ends[i as usize] = vec![flow];
                }
                What::Send { .. } => {
                    built.flows.push(Flow::wait(op.rank, after, 0));
                    ends[i as usize] = vec![flow];
                }
                What::Calc { span, cpu } => {
                    let at_once = awaited.contains(&i);
                    let work = Some(Work { processor: cpu, span, at_once });
                    built.flows.push(Flow { work, ..Flow::wait(op.rank, after, 0) });
                    ends[i as usize] = vec![flow];
                    if at_once {
                        // Others wait for its beginning.
                        built.begins[i as usize] = vec![flow];
                        built.flows.push(Flow::wait(op.rank, vec![flow], span));
                        ends[i as usize] = vec![flow + 1];
                    }
                }
                What::Recv { .. } => {
                    let send = matches.get(&i).map(|send| ends[*send as usize].clone());
                    let both = send.into_iter().flatten().chain(after.iter().copied()).collect();
                    ends[i as usize] = built.few(op.rank, both);
                }
            }
        }
        Ok(built.flows)
    }
}

struct Built {
    flows: Vec<Flow>,
    /// By operation: the flows that must have ended before it begins.
    begins: Vec<Vec<u32>>,
}

impl Built {
    /// The same condition in few flows.
    fn few(&mut self, rank: u32, mut after: Vec<u32>) -> Vec<u32> {
        after.sort_unstable();
        after.dedup();
        if after.len() <= MANY {
            return after;
        }
        self.flows.push(Flow::wait(rank, after, 0));
        vec![self.flows.len() as u32 - 1]
    }
}

/// `tag 5 cpu 0 nic 0`, in any order.
fn options(line: usize, mut what: What, rest: &[&str]) -> Result<What, FormatError> {
    for pair in rest.chunks(2) {
        let [key, value] = *pair else {
            return Err(FormatError::new(line, format!("\"{}\" has no value", short(pair[0]))));
        };
        let value: Option<u32> = if value == ANY { None } else { Some(number(line, value)?) };
        match (key, &mut what, value) {
            ("tag", What::Send { tag, .. }, Some(value)) => *tag = value,
            ("tag", What::Recv { tag, .. }, value) => *tag = value,
            ("cpu", What::Calc { cpu, .. }, Some(value)) => *cpu = value,
            // Cards do the work of sends and receives, and each host has one.
            ("cpu" | "nic", ..) => {}
            _ => return Err(FormatError::new(line, format!("\"{}\" is no option", short(key)))),
        }
    }
    Ok(what)
}

fn number<T: core::str::FromStr>(line: usize, word: &str) -> Result<T, FormatError> {
    let what = || format!("\"{}\" is not a number here", short(word));
    word.parse().map_err(|_| FormatError::new(line, what()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::flows::Cluster;
    use crate::net::time::US;
    use crate::net::{LineRate, Star};

    const TREE: &str = "num_ranks 4\n\nrank 0 { // the root\nl1: send 1000b to 1 tag 3\n\
        l2: calc 5000\nl3: send 1000b to 2 tag 0 cpu 0 nic 0\nl3 requires l2\n}\n\
        rank 1 {\nl1: recv 1000b from 0 tag 3\nl2: send 1000b to 3\nl2 requires l1\n}\n\
        /* the others\n only receive */ rank 2 {\nrecv 1000b from 0 tag -1\n}\n\
        rank 3 {\nl1: recv 1000b from -1 tag 0\n}\n";

    #[test]
    fn a_schedule_takes_what_it_says() {
        let flows = read(TREE, 4).unwrap();
        assert_eq!(Flow::check(&flows, 4), Ok(()));
        let star = Star { hosts: 4, rate: LineRate::gigabits(100), delay: US };
        let report = Cluster::new(star.topology()).run(&flows).unwrap();
        assert_eq!((report.done(), report.messages().count()), (4, 3));
        let began = |src, dst| {
            let at = flows.iter().position(|f| (f.src, f.dst) == (src, dst)).unwrap();
            report.flows[at].began.unwrap()
        };
        assert_eq!((began(0, 1), began(0, 2)), (0, 5 * US));
        // When the packet has arrived, stored and forwarded once.
        assert_eq!(began(1, 3), 2 * 80 * (1000 + 32 + 4 + 66) + 2 * US);
    }

    #[test]
    fn spaces_and_braces_may_stand_as_they_like() {
        let plain = "num_ranks 2\nrank 0 {\nl1: send 10b to 1\nl2: calc 100\n\
            l2 requires l1\n}\nrank 1 {\nl1: recv 10b from 0\n}\n";
        let flows = read(plain, 2).unwrap();
        let other = "num_ranks 2\nrank 0{l1 : send 10 b to 1\nl2:calc 100\n\
            l2 requires l1} rank 1 { l1:recv 10 b from 0 }\n";
        assert_eq!(read(other, 2), Ok(flows));
        for (line, wrong) in [
            (2, "rank 0 { l1: l2: calc 1 }"),
            (2, "rank 0 { : calc 1 }"),
            (3, "rank 0 {\nl1 calc 1 }"),
            (2, "rank 0 { calc 1 cpu }"),
            (2, "rank 0 { requires a }"),
        ] {
            let error = read(&format!("num_ranks 2\n{wrong}\n"), 2).unwrap_err();
            assert_eq!(error.line, line, "{wrong}: {error}");
        }
    }

    #[test]
    fn messages_without_bytes_have_one() {
        let text = "num_ranks 2\nrank 0 {\nsend 0b to 1\n}\nrank 1 {\nrecv 0b from 0\n}\n";
        assert_eq!(read_whole(text, 2), Ok((vec![Flow::new(0, 1, 1, 0)], true)));
        assert!(!read_whole(TREE, 64).unwrap().1);
    }

    #[test]
    fn the_highest_tag_is_a_tag() {
        let text = |send: &str, recv: &str| {
            let text = format!(
                "num_ranks 2\nrank 0 {{\nsend 1b to 1 tag {send}\n}}\n\
                rank 1 {{\nrecv 1b from 0 tag {recv}\n}}\n"
            );
            read(&text, 2).map(|flows| flows.len())
        };
        assert_eq!(text("4294967295", "4294967295"), Ok(1));
        assert_eq!(text("4294967295", "-1"), Ok(1));
        assert_eq!(text("4294967295", "1").unwrap_err().line, 6);
        assert_eq!(text("-1", "-1").unwrap_err().line, 3);
    }

    /// When the sends of two ranks begin, in nanoseconds: those from 0, then those from 1.
    fn sends(rank_0: &str, rank_1: &str) -> [Vec<u64>; 2] {
        let text = format!("num_ranks 2\nrank 0 {{\n{rank_0}}}\nrank 1 {{\n{rank_1}}}\n");
        let flows = read(&text, 2).unwrap();
        let star = Star { hosts: 2, rate: LineRate::gigabits(100), delay: US };
        let report = Cluster::new(star.topology()).run(&flows).unwrap();
        assert_eq!(report.done(), flows.len());
        let of = |src| {
            let all = report.messages().filter(move |(_, way)| way.0 == src);
            all.map(|(flow, _)| flow.began.unwrap() / NS).collect()
        };
        [0, 1].map(of)
    }

    /// The first in the file is not the first that is ready.
    #[test]
    fn calculations_of_one_processor_take_turns_as_they_are_ready() {
        let rank_0 = "send 1b to 1\nr: recv 1b from 1\ns: send 1b to 1\ns requires r\n";
        let rank_1 = "a: recv 1b from 0\nb: calc 10\nb requires a\nc: calc 10\nd: send 1b to 0\n\
            d requires c\nrecv 1b from 0\n";
        assert_eq!(sends(rank_0, rank_1)[1], [10]);
        // Those that are ready at once take turns in the order of the file, on each processor.
        let two = "a: calc 10\nb: calc 10 cpu 1\nc: calc 10\nd: calc 10 cpu 1\ns: send 1b to 1\n\
            t: send 2b to 1\ns requires c\nt requires b\n";
        assert_eq!(sends(two, "recv 1b from 0\nrecv 2b from 0\n")[0], [20, 10]);
    }

    #[test]
    fn a_calculation_begins_when_it_has_its_turn() {
        let rank_0 = "a: calc 10\nb: calc 50\ns: send 1b to 1\nt: send 2b to 1\n\
            s irequires b\nt requires b\n";
        assert_eq!(sends(rank_0, "recv 1b from 0\nrecv 2b from 0\n")[0], [10, 60]);
    }

    #[test]
    fn what_waits_for_many_shares_a_wait() {
        let sends: String = (0..20).map(|i| format!("s{i}: send 1b to 0 tag {i}\n")).collect();
        let recvs: String = (0..20).map(|i| format!("r{i}: recv 1b from 1 tag {i}\n")).collect();
        let all: String = (0..20).map(|i| format!("c requires r{i}\n")).collect();
        let text =
            format!("num_ranks 2\nrank 1 {{\n{sends}}}\nrank 0 {{\n{recvs}c: calc 1\n{all}}}");
        let flows = read(&text, 2).unwrap();
        assert_eq!(
            (flows.len(), flows[20].after.len(), flows[21].after.clone()),
            (22, 20, vec![20])
        );
        assert_eq!(Flow::check(&flows, 2), Ok(()));
    }

    /// The many would take minutes if each looked through the others' sends.
    #[test]
    fn receives_from_anywhere_take_sends_in_order_by_source_and_tag() {
        let two = |recvs: &str| {
            let sends = "rank 0 {\nsend 1b to 2 tag 5\nsend 2b to 2 tag 6\n}\n\
                rank 1 {\nsend 3b to 2 tag 5\n}\n";
            read(&format!("num_ranks 3\n{sends}rank 2 {{\n{recvs}}}\n"), 3).map(|flows| flows.len())
        };
        assert_eq!(
            two("recv 1b from -1 tag 5\nrecv 3b from -1 tag 5\nrecv 2b from 0 tag -1\n"),
            Ok(3)
        );
        assert_eq!(
            two("recv 1b from 0 tag -1\nrecv 2b from -1 tag -1\nrecv 3b from -1 tag 5\n"),
            Ok(3)
        );
        // A buffer may be longer than what comes.
        let recvs = "recv 9b from -1 tag 5\nrecv 1b from -1 tag 5\nrecv 9b from 0 tag -1\n";
        let error = two(recvs).unwrap_err().to_string();
        assert!(error.starts_with("line 11: ") && error.contains("line 7"), "{error}");
        assert_eq!(two(&recvs.replace("1b", "4096b")), Ok(3));
        let many = 60_000;
        let sends: String = (0..many).map(|i| format!("send 1b to 1 tag {i}\n")).collect();
        let recvs: String = (0..many).rev().map(|i| format!("recv 1b from -1 tag {i}\n")).collect();
        let text = format!("num_ranks 2\nrank 0 {{\n{sends}}}\nrank 1 {{\n{recvs}}}\n");
        assert_eq!(read(&text, 2).unwrap().len(), many);
    }

    /// A rank that others ask, in any order, and that answers each before it takes the next.
    #[test]
    fn a_receive_from_anywhere_takes_a_send_that_does_not_wait_for_it() {
        let text = "num_ranks 3\nrank 0 {\nr1: recv 8b from -1 tag 1\ns: send 8b to 1 tag 2\n\
            s requires r1\nr2: recv 8b from -1 tag 1\nr2 requires s\n}\n\
            rank 1 {\na: recv 8b from 0 tag 2\nb: send 8b to 0 tag 1\nb requires a\n}\n\
            rank 2 {\nsend 8b to 0 tag 1\n}\n";
        let flows = read(text, 3).unwrap();
        let star = Star { hosts: 3, rate: LineRate::gigabits(100), delay: US };
        assert_eq!(Cluster::new(star.topology()).run(&flows).unwrap().done(), 3);
        let ways: Vec<_> = flows.iter().map(|flow| (flow.src, flow.dst)).collect();
        assert_eq!(ways, [(2, 0), (0, 1), (1, 0)]);
    }

    #[test]
    fn an_error_names_its_line() {
        let wrong =
            |from: &str, to: &str| read(&TREE.replace(from, to), 4).unwrap_err().to_string();
        assert_eq!(wrong("from 0 tag 3", "from 0 tag 4"), "line 10: no send matches this recv");
        assert_eq!(wrong("recv 1000b from 0 tag -1", ""), "line 6: no recv matches this send");
        assert_eq!(wrong("to 2 tag", "to 7 tag"), "line 6: there is no rank 7");
        assert!(wrong("l3 requires l2", "l3 requires l9").starts_with("line 7: there is no label"));
        assert!(wrong("num_ranks 4", "num_ranks 5").contains("do not fit 4 hosts"));
        let twice = wrong("num_ranks 4\n", "num_ranks 4\nnum_ranks 2");
        assert_eq!(twice, "line 2: num_ranks is there twice");
        let other = wrong("recv 1000b from -1", "recv 999b from -1");
        assert!(other.contains("this recv is of 999 bytes") && other.contains("1000"), "{other}");
        assert!(
            wrong("l2 requires l1", "l2 requires l1\nl1 requires l2").contains("waits for itself")
        );
        assert!(wrong("calc 5000", "calc x").starts_with("line 5: "));
        let long = wrong("send 1000b to 1", "send 3000000000b to 1");
        assert_eq!(long, "line 4: a send of 3000000000 bytes: the longest is 2147483648");
        assert!(wrong("tag 0\n}\n", "tag 0\n").contains("the file ends"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(
            any: String,
            ops in prop::collection::vec((0u32..3, 0u32..4, 0u32..3, 0u32..8, 0u32..8), 0..24),
        ) {
            let mut text = "num_ranks 3\n".to_owned();
            for rank in 0..3 {
                text += &format!("rank {rank} {{\n");
                for (i, (of, kind, peer, a, b)) in ops.iter().enumerate() {
                    if *of == rank {
                        let ops = [
                            format!("send 9b to {peer}"),
                            format!("recv 9b from {peer}"),
                            format!("calc {a}"),
                            "recv 9b from -1".to_owned(),
                        ];
                        let op = &ops[*kind as usize];
                        text += &format!("l{i}: {op}\nl{i} requires l{b}\n");
                    }
                }
                text += "}\n";
            }
            let plain = text.lines().filter(|line| !line.contains("requires"));
            let plain = plain.collect::<Vec<_>>().join("\n");
            for text in [&any, &text, &plain] {
                if let Ok(flows) = read(text, 3) {
                    prop_assert_eq!(Flow::check(&flows, 3), Ok(()));
                }
            }
        }
    }
}
