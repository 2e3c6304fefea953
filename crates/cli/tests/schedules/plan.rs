//! What happens in a schedule: drawn from its seed.

use std::fmt;
use std::time::Duration;

use remora_store::front::slots::{Range, SLOTS};

use crate::history::course::random_numbers;

/// How long clients work, in milliseconds.
const LASTS_MS: u64 = 2500;
/// For how long a node is stopped: less than a lease to more than two.
const STOPS_MS: [u64; 4] = [150, 450, 700, 1200];

/// The number of a link's harm among all: there is one at most.
const LINK: usize = 99;

/// For how long a node is cut off, until connections end and leases are over.
const CUTS_MS: [u64; 3] = [450, 1200, 2000];

/// How long clients work at least after nodes have come again: a group serves again after a lease.
const SERVES_MS: u64 = 1200;

/// A schedule.
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) clients: usize,
    /// Each node keeps its log on the disk, so that it can come again.
    pub(crate) on_disks: bool,
    /// What happens, and when, in its order.
    pub(crate) steps: Vec<(Duration, Step)>,
    pub(crate) lasts: Duration,
}

/// One of the two groups, by its index.
pub(crate) type Group = usize;

/// Which node of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Who {
    Primary,
    Backup,
}

/// Which way between a primary and a backup.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    ToBackup,
    ToPrimary,
    Both,
}

/// Something that happens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// A node is gone, without a word.
    Kill(Group, Who),
    /// All nodes of a group are gone at once.
    KillGroup(Group),
    /// All nodes of both groups are.
    KillAll,
    /// All nodes of a group that are gone come again, each with its directory.
    Return(Group),
    /// A node is there in addition: it takes the place of one that is lost.
    Start(Group),
    /// A node stands still. It is the one of this number among those that something is wrong with.
    Stop(Group, Who, usize),
    /// A node reaches etcd, but no other node, and no other node reaches it.
    CutFromNodes(Group, Who, usize),
    /// A node reaches the others, but not etcd.
    CutFromEtcd(Group, Who, usize),
    /// A group's primary and one of its backups do not reach each other, or one not the other; both
    /// reach everybody else.
    CutLink(Group, Way, usize),
    /// A backup's network is a hundred times slower than the others'.
    Slow(Group, usize),
    /// It goes on, or is not cut off any more, nor slow.
    GoOn(usize),
    KillEtcd(usize),
    StartEtcd(usize),
    /// All members of etcd stand still.
    StopEtcd,
    GoOnEtcd,
    /// Slots are to go to a group.
    Move(Range, Group),
}

impl Step {
    /// All that a schedule is to go through, in order.
    pub(crate) const KINDS: [&str; 19] = [
        "CutFromEtcd Backup",
        "CutFromEtcd Primary",
        "CutFromNodes Backup",
        "CutFromNodes Primary",
        "CutLink",
        "CutLink one way",
        "GoOn",
        "Kill Backup",
        "Kill Primary",
        "KillAll",
        "KillEtcd",
        "KillGroup",
        "Move",
        "Return",
        "Slow",
        "Start",
        "Stop Backup",
        "Stop Primary",
        "StopEtcd",
    ];

    pub(crate) fn kind(&self) -> &'static str {
        use Who::{Backup, Primary};
        match self {
            Step::CutFromEtcd(_, Backup, _) => "CutFromEtcd Backup",
            Step::CutFromEtcd(_, Primary, _) => "CutFromEtcd Primary",
            Step::CutFromNodes(_, Backup, _) => "CutFromNodes Backup",
            Step::CutFromNodes(_, Primary, _) => "CutFromNodes Primary",
            Step::CutLink(_, Way::Both, _) => "CutLink",
            Step::CutLink(..) => "CutLink one way",
            Step::Slow(..) => "Slow",
            Step::GoOn(_) | Step::StartEtcd(_) | Step::GoOnEtcd => "GoOn",
            Step::Kill(_, Backup) => "Kill Backup",
            Step::Kill(_, Primary) => "Kill Primary",
            Step::KillAll => "KillAll",
            Step::KillEtcd(_) => "KillEtcd",
            Step::KillGroup(_) => "KillGroup",
            Step::Move(..) => "Move",
            Step::Return(_) => "Return",
            Step::Start(_) => "Start",
            Step::Stop(_, Backup, _) => "Stop Backup",
            Step::Stop(_, Primary, _) => "Stop Primary",
            Step::StopEtcd => "StopEtcd",
        }
    }
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Plan {
        let mut random = random_numbers(seed);
        let mut below = |n: u64| random() % n;
        let mut steps = moves(&mut below);
        let mut is_reduced = [false; 2];
        for number in 0..2 + below(4) as usize {
            let (at, group) = (200 + below(LASTS_MS - 400), below(2) as Group);
            let who = if below(3) < 2 { Who::Primary } else { Who::Backup };
            let until = at + STOPS_MS[below(STOPS_MS.len() as u64) as usize];
            let mended = at + CUTS_MS[below(CUTS_MS.len() as u64) as usize];
            match below(10) {
                // A majority has to live.
                0..3 if !is_reduced[group] => {
                    is_reduced[group] = true;
                    steps.push((at, Step::Kill(group, who)));
                    if below(4) == 0 {
                        steps.push((until, Step::Start(group)));
                    }
                }
                0..6 => {
                    let is_stopped = Step::Stop(group, who, number);
                    steps.extend([(at, is_stopped), (until, Step::GoOn(number))]);
                }
                6 => {
                    let member = below(3) as usize;
                    steps.extend([(at, Step::KillEtcd(member)), (until, Step::StartEtcd(member))]);
                }
                7 => steps.extend([(at, Step::StopEtcd), (until, Step::GoOnEtcd)]),
                8 => {
                    let is_cut = Step::CutFromNodes(group, who, number);
                    steps.extend([(at, is_cut), (mended, Step::GoOn(number))]);
                }
                _ => {
                    let is_cut = Step::CutFromEtcd(group, who, number);
                    steps.extend([(at, is_cut), (mended, Step::GoOn(number))]);
                }
            }
        }
        let clients = 3 + below(3) as usize;
        steps.extend(harm_to_a_link(&mut below));
        // (Drawn last: the other steps of a seed are the same without disks.)
        let on_disks = below(2) == 0;
        let mut lasts = LASTS_MS;
        if on_disks {
            let returns = ends_and_returns(&steps, &mut below);
            let last = returns.iter().map(|(at, _)| *at).max();
            lasts = lasts.max(last.map_or(0, |last| last + SERVES_MS));
            steps.extend(returns);
        }
        steps.sort_by_key(|(at, _)| *at);
        lasts = lasts.max(steps.last().map_or(0, |(at, _)| *at));
        let steps = steps.into_iter().map(|(at, step)| (Duration::from_millis(at), step));
        let lasts = Duration::from_millis(lasts);
        Plan { seed, clients, on_disks, steps: steps.collect(), lasts }
    }
}

/// Slots go to and fro. (At first, one group has all of them.)
fn moves(below: &mut impl FnMut(u64) -> u64) -> Vec<(u64, Step)> {
    let half = Range { first: 0, last: SLOTS / 2 - 1 };
    let mut steps = vec![(0, Step::Move(half, 1))];
    for _ in 0..1 + below(3) {
        let (one, other) = (below(SLOTS.into()) as u16, below(SLOTS.into()) as u16);
        let range = Range { first: one.min(other), last: one.max(other) };
        steps.push((300 + below(LASTS_MS - 500), Step::Move(range, below(2) as Group)));
    }
    steps
}

/// What happens to a link or a network, if anything does.
fn harm_to_a_link(below: &mut impl FnMut(u64) -> u64) -> Vec<(u64, Step)> {
    let (at, group) = (200 + below(LASTS_MS - 400), below(2) as Group);
    let mended = at + CUTS_MS[below(CUTS_MS.len() as u64) as usize];
    let harm = match (below(4), below(3)) {
        (0 | 1, 0) => Step::CutLink(group, Way::ToBackup, LINK),
        (0 | 1, 1) => Step::CutLink(group, Way::ToPrimary, LINK),
        (0 | 1, _) => Step::CutLink(group, Way::Both, LINK),
        (2, _) => Step::Slow(group, LINK),
        _ => return Vec::new(),
    };
    vec![(at, harm), (mended, Step::GoOn(LINK))]
}

/// Where nodes have disks: who of those that are killed come again, and which groups are killed and
/// come again.
fn ends_and_returns(steps: &[(u64, Step)], below: &mut impl FnMut(u64) -> u64) -> Vec<(u64, Step)> {
    let mut more = Vec::new();
    for (at, step) in steps {
        if let Step::Kill(group, _) = step
            && below(4) > 0
        {
            more.push((at + 100 + below(1200), Step::Return(*group)));
        }
    }
    let (at, group) = (600 + below(1000), below(2) as Group);
    let (end, groups) = match below(8) {
        0..4 => (Step::KillGroup(group), group..group + 1),
        4..7 => (Step::KillAll, 0..2),
        _ => return more,
    };
    more.push((at, end));
    more.extend(groups.map(|group| (at + 50 + below(700), Step::Return(group))));
    more
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let disks = if self.on_disks { ", on disks" } else { "" };
        write!(f, "{} clients{disks}", self.clients)?;
        let mut steps = self.steps.iter();
        steps.try_for_each(|(at, step)| write!(f, ", {} ms {step:?}", at.as_millis()))
    }
}
