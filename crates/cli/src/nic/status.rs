//! `remora nic status`: shows the sessions on the card, their shares and the ways to their memory,
//! as tables or as JSON.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use remora::daemon::Status as Served;
use remora::daemon::{ObserveError, Observer};
use remora::message::{DmaClientStatus, Keep, Loan, RegionStatus, SessionStatus};
use remora::nic::Rate;
use remora_command::{output, stop};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use super::Socket;
use crate::dma::channels;

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);

/// `remora nic status`.
#[derive(Debug, Args)]
pub(super) struct Status {
    /// Repeat once a second, with rates, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Print a line of JSON each time
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    socket: Socket,
}

impl Status {
    pub(super) fn run(self) -> Result<()> {
        let stop = stop::signals()?;
        let observer = self.socket.connect()?;
        let mut before: Option<(Instant, Served)> = None;
        loop {
            let (at, now) = (Instant::now(), observer.status()?);
            if self.json {
                output::json_line(&document(&now, &observer)?)?;
            } else {
                if self.watch && io::stdout().is_terminal() {
                    // Clears the screen and starts at its top.
                    print!("\x1b[H\x1b[2J");
                }
                let since = before.as_ref().map(|(then, served)| (at - *then, served));
                show(&now, since);
            }
            before = Some((at, now));
            if !self.watch || stops_within(&stop, PERIOD) {
                return Ok(());
            }
        }
    }
}

/// Waits; returns whether a signal has come.
fn stops_within(stop: &impl AsFd, time: Duration) -> bool {
    let limit = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: 0 };
    poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&limit)) != Ok(0)
}

fn show(now: &Served, before: Option<(Duration, &Served)>) {
    let card = now.card;
    let count = now.sessions.len();
    let sessions = if count == 1 { "session" } else { "sessions" };
    println!("Card at {}, UDP port {}: {count} {sessions}", card.address, card.port);
    let impaired: Vec<String> = impaired(now)
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name} {}", output::grouped(count)))
        .collect();
    if !impaired.is_empty() {
        println!("On purpose: {}", impaired.join(", "));
    }
    if now.is_impaired {
        println!("Packets are impaired, until: remora nic impair off");
    }
    if !now.sessions.is_empty() {
        show_sessions(now, before);
    }
    if !now.sessions.is_empty() {
        show_limits(&now.sessions);
    }
    if !now.passes.is_empty() {
        show_passes(now);
    }
    if !now.dma_clients.is_empty() {
        show_dma(&now.dma_clients);
    }
}

/// What was done on purpose to the card's packets.
fn impaired(now: &Served) -> impl Iterator<Item = (&'static str, u64)> {
    now.impaired.iter().flat_map(|(way, counters)| counters.named(*way))
}

fn show_sessions(now: &Served, before: Option<(Duration, &Served)>) {
    let mut header = vec![
        "session", "name", "user", "process", "state", "QPs", "lossy", "kernels", "CQs", "regions",
        "memory", "by", "arena", "posted", "moved", "refused",
    ];
    if before.is_some() {
        header.extend(["posts a second", "bytes a second"]);
    }
    let mut table = output::table(header);
    for session in &now.sessions {
        let mut row = row(session);
        if let Some((time, before)) = before {
            row.extend(rates(session, time, before));
        }
        table.add_row(row);
    }
    output::align_right(&mut table, [0, 2, 3, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17]);
    println!("{table}");
}

/// What the sessions may use, and how much of it they do.
fn show_limits(sessions: &[SessionStatus]) {
    println!("What they may use:");
    let mut table = output::table([
        "session",
        "name",
        "shares",
        "posts a second",
        "bytes a second",
        "QPs",
        "CQs",
        "regions",
        "loans",
        "memory",
        "arena",
    ]);
    for session in sessions {
        let quotas = &session.quotas;
        let count = |used: u32, most: u32| {
            format!("{} of {}", output::grouped(used.into()), output::grouped(most.into()))
        };
        let bytes = |used, most| format!("{} of {}", output::bytes(used), output::bytes(most));
        table.add_row([
            session.session.to_string(),
            remora::printable(&session.name),
            session.weight.to_string(),
            limit(session.rates.elements, output::grouped),
            limit(session.rates.bytes, output::bytes),
            count(session.queue_pairs, quotas.queue_pairs),
            count(session.completion_queues, quotas.completion_queues),
            count(session.regions, quotas.regions),
            count(loans(session), quotas.loans),
            bytes(session.registered_bytes, quotas.memory_bytes),
            bytes(session.arena_bytes, quotas.arena_bytes),
        ]);
    }
    output::align_right(&mut table, [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    println!("{table}");
}

/// Pieces of memory that the session lends.
fn loans(session: &SessionStatus) -> u32 {
    session.lent.iter().map(|(_, count)| count).sum()
}

fn limit(rate: Option<Rate>, show: impl Fn(u64) -> String) -> String {
    rate.map_or_else(|| "any".into(), |rate| show(rate.per_second))
}

/// Who writes and reads whose memory past the daemon.
fn show_passes(now: &Served) {
    let name = |number: u32| {
        let of = now.sessions.iter().find(|session| session.session == number);
        of.map_or_else(String::new, |session| remora::printable(&session.name))
    };
    println!("Past the daemon:");
    let mut table = output::table(["session", "name", "reaches", "name", "passes"]);
    for row in &now.passes {
        table.add_row([
            row.session.to_string(),
            name(row.session),
            row.of.to_string(),
            name(row.of),
            output::grouped(row.passes.into()),
        ]);
    }
    output::align_right(&mut table, [0, 2, 4]);
    println!("{table}");
}

/// Who uses the card's memory, a row for each channel.
fn show_dma(clients: &[DmaClientStatus]) {
    println!("Programs that use the card’s memory:");
    let of_client = ["process", "user", "regions", "granted", "card memory"];
    let mut table = output::table(of_client.into_iter().chain(channels::HEADINGS));
    for client in clients {
        let mut of = [
            client.pid.to_string(),
            client.uid.to_string(),
            client.regions.to_string(),
            output::bytes(client.granted_bytes),
            output::bytes(client.card_bytes),
        ];
        let Some(rows) = &client.channels else {
            // The engine makes a call for memory of a program.
            table.add_row(of.into_iter().chain(channels::unknown()));
            continue;
        };
        if rows.is_empty() {
            table.add_row(&of);
        }
        for channel in rows {
            // What is the client's stands in the first of its rows.
            table.add_row(std::mem::take(&mut of).into_iter().chain(channels::cells(channel)));
        }
    }
    output::align_right(&mut table, [0, 1, 2, 3, 4, 8, 9]);
    println!("{table}");
}

fn row(session: &SessionStatus) -> Vec<String> {
    vec![
        session.session.to_string(),
        remora::printable(&session.name),
        session.uid.to_string(),
        session.pid.to_string(),
        state(session),
        session.queue_pairs.to_string(),
        session.lossy.to_string(),
        session.kernels.to_string(),
        session.completion_queues.to_string(),
        session.regions.to_string(),
        output::bytes(session.registered_bytes),
        ways(session),
        output::bytes(session.arena_bytes),
        output::grouped(session.posted),
        output::bytes(session.bytes),
        output::grouped(session.refused),
    ]
}

/// Posts and bytes a second, of a session that was there before.
fn rates(session: &SessionStatus, time: Duration, before: &Served) -> [String; 2] {
    let then = before.sessions.iter().find(|then| then.session == session.session);
    let Some(then) = then else { return [String::new(), String::new()] };
    let a_second = |now: u64, then: u64| {
        (now.saturating_sub(then) as f64 / time.as_secs_f64().max(0.001)).round() as u64
    };
    [
        output::grouped(a_second(session.posted, then.posted)),
        output::bytes(a_second(session.bytes, then.bytes)),
    ]
}

fn state(session: &SessionStatus) -> String {
    match (session.attached, session.ends_in_s) {
        (true, _) if session.is_machine => "in a machine".into(),
        (true, _) => "attached".into(),
        (false, Some(seconds)) => format!("kept, {seconds} s left"),
        (false, None) => "kept".into(),
    }
}

/// How the card reaches the session's regions: how many by each way.
fn ways(session: &SessionStatus) -> String {
    let is_kept = session.keep != Keep::No;
    let ways = session.ways.iter().map(|(way, count)| match way {
        Some(Loan::Process | Loan::ProcessFile) if is_kept => {
            format!("{} {count} (not kept)", way_name(*way))
        }
        _ => format!("{} {count}", way_name(*way)),
    });
    ways.collect::<Vec<_>>().join(", ")
}

fn way_name(way: Option<Loan>) -> &'static str {
    match way {
        None => "arena",
        Some(Loan::Sealed) => "mapping",
        Some(Loan::File) => "file",
        Some(Loan::Process) => "process_vm",
        Some(Loan::ProcessFile) => "/proc/mem",
    }
}

/// A session may end before its regions are asked for: then there are none.
fn document(now: &Served, observer: &Observer) -> Result<Value, ObserveError> {
    let described =
        |of: &SessionStatus| observer.regions(of.session).map(|regions| describe(of, &regions));
    let sessions = now.sessions.iter().map(described).collect::<Result<Vec<Value>, _>>()?;
    let card = json!({ "address": now.card.address, "port": now.card.port });
    let passes: Vec<Value> = now
        .passes
        .iter()
        .map(|row| json!({ "session": row.session, "of": row.of, "passes": row.passes }))
        .collect();
    let impaired: serde_json::Map<String, Value> =
        impaired(now).map(|(name, count)| (name.to_owned(), count.into())).collect();
    Ok(json!({
        "card": card,
        "impaired": impaired,
        "is_impaired": now.is_impaired,
        "sessions": sessions,
        "passes": passes,
        "dma_clients": now.dma_clients,
    }))
}

fn describe(session: &SessionStatus, regions: &[RegionStatus]) -> Value {
    let pieces = session.lent.iter().map(|(way, count)| (Some(*way), *count));
    let by_name = |(way, count)| (way_name(way).to_owned(), Value::from(count));
    let lent: serde_json::Map<String, Value> = pieces.map(by_name).collect();
    let ways: serde_json::Map<String, Value> = session.ways.iter().copied().map(by_name).collect();
    let regions = regions.iter().map(
        |region| json!({ "key": region.key, "bytes": region.len, "way": way_name(region.way) }),
    );
    let regions: Vec<Value> = regions.collect();
    let keep_seconds = match session.keep {
        Keep::No => Some(0),
        Keep::Seconds(seconds) => Some(seconds),
        Keep::Forever => None,
    };
    json!({
        "session": session.session,
        "name": session.name,
        "uid": session.uid,
        "pid": session.pid,
        "machine": session.is_machine,
        "attached": session.attached,
        "keep_seconds": keep_seconds,
        "ends_in_seconds": session.ends_in_s,
        "epoch": session.epoch,
        "queue_pairs": session.queue_pairs,
        "lossy_connections": session.lossy,
        "kernels": session.kernels,
        "completion_queues": session.completion_queues,
        "regions": session.regions,
        "registered_bytes": session.registered_bytes,
        "arena_bytes": session.arena_bytes,
        "lent": lent,
        "loans": loans(session),
        "ways": ways,
        "memory": regions,
        "posted": session.posted,
        "completed": session.completed,
        "bytes": session.bytes,
        "refused": session.refused,
        "quotas": session.quotas,
        "rates": session.rates,
        "weight": session.weight,
    })
}
