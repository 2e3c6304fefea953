//! `stats`: what memcached's clients may ask of the server.

use std::sync::atomic::Ordering::Relaxed;

use crate::front::memcached::chunk::VERSION;
use crate::front::memcached::conversation::Call;
use crate::slab::{ClassInfo, class};
use crate::stats::{Op, Way};

/// What follows `stats`, as names and values; None if there is nothing of that name.
pub(super) fn entries(call: &Call<'_>, what: &[u8]) -> Option<Vec<(String, String)>> {
    match what {
        b"" => Some(general(call)),
        b"settings" => Some(settings(call)),
        b"latency" => Some(latencies(call)),
        b"slabs" => Some(slabs(call)),
        b"items" => Some(items(call)),
        // Neither is kept.
        b"sizes" | b"conns" => Some(Vec::new()),
        _ => None,
    }
}

fn general(call: &Call<'_>) -> Vec<(String, String)> {
    let server = &call.turn.server;
    let sums = server.stats.sums();
    let (bytes, limit) = server.keyspace.bytes();
    let gone = server.let_go();
    let entries: Vec<(&str, u64)> = vec![
        ("pid", std::process::id().into()),
        ("uptime", server.uptime().as_secs()),
        ("time", call.turn.now / 1000),
        ("pointer_size", usize::BITS.into()),
        ("max_connections", server.settings.max_clients.load(Relaxed)),
        ("curr_connections", server.clients.count()),
        ("total_connections", sums.connections),
        ("rejected_connections", sums.connections_refused),
        ("cmd_get", sums.cmd_get),
        ("cmd_set", sums.cmd_set),
        ("cmd_flush", sums.cmd_flush),
        ("cmd_touch", sums.cmd_touch),
        ("get_hits", sums.get_hits),
        ("get_misses", sums.get_misses),
        ("one_sided_hits", sums.one_sided_hits),
        ("chain_lookups", sums.chain_lookups),
        ("delete_misses", sums.delete_misses),
        ("delete_hits", sums.delete_hits),
        ("incr_misses", sums.incr_misses),
        ("incr_hits", sums.incr_hits),
        ("decr_misses", sums.decr_misses),
        ("decr_hits", sums.decr_hits),
        ("cas_misses", sums.cas_misses),
        ("cas_hits", sums.cas_hits),
        ("cas_badval", sums.cas_badval),
        ("touch_hits", sums.touch_hits),
        ("touch_misses", sums.touch_misses),
        ("auth_cmds", sums.auth_cmds),
        ("auth_errors", sums.auth_refused),
        ("idle_kicks", sums.connections_idle),
        ("bytes_read", sums.bytes_in),
        ("bytes_written", sums.bytes_out),
        ("limit_maxbytes", limit),
        ("bytes", bytes),
        ("curr_items", server.keyspace.count(call.ts)),
        ("total_items", sums.stored),
        ("evictions", gone.evicted),
        ("expired_keys", gone.expired),
    ];
    let mut all = vec![("version".to_owned(), VERSION.to_owned())];
    all.extend(entries.into_iter().map(|(name, value)| (name.to_owned(), value.to_string())));
    all
}

fn settings(call: &Call<'_>) -> Vec<(String, String)> {
    let server = &call.turn.server;
    let settings = &server.settings;
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let entries = [
        ("maxbytes", server.keyspace.bytes().1.to_string()),
        ("maxconns", settings.max_clients.load(Relaxed).to_string()),
        ("tcpport", server.ports.get().map_or(0, |ports| ports.1).to_string()),
        ("udpport", "0".to_owned()),
        ("cas_enabled", yes(true)),
        ("auth_enabled_sasl", yes(settings.password().is_some())),
        ("item_size_max", settings.bulk_bytes.load(Relaxed).to_string()),
        ("idle_timeout", settings.idle_s.load(Relaxed).to_string()),
        ("flush_enabled", yes(true)),
        ("dump_enabled", yes(true)),
        ("lru_crawler", yes(true)),
        ("slab_reassign", yes(false)),
        ("binding_protocol", "auto-negotiate".to_owned()),
    ];
    entries.map(|(name, value)| (name.to_owned(), value)).into()
}

/// The sizes of blocks that the clients' tablespace has, by the numbers of all sizes from 1 on.
fn classes(call: &Call<'_>) -> Vec<(usize, ClassInfo)> {
    let all = class::classes();
    let held = call.turn.server.keyspace.classes(call.ts).into_iter();
    held.filter_map(|held| Some((class::class_for(&all, held.size)? + 1, held))).collect()
}

fn slabs(call: &Call<'_>) -> Vec<(String, String)> {
    let (mut entries, mut total) = (Vec::new(), 0);
    let classes = classes(call);
    for (number, class) in &classes {
        let free = class.blocks.saturating_sub(class.used);
        for (name, value) in [
            ("chunk_size", class.size),
            ("total_chunks", class.blocks),
            ("used_chunks", class.used),
            ("free_chunks", free),
        ] {
            entries.push((format!("{number}:{name}"), value.to_string()));
        }
        total += class.size * class.blocks;
    }
    entries.push(("active_slabs".to_owned(), classes.len().to_string()));
    entries.push(("total_malloced".to_owned(), total.to_string()));
    entries
}

/// A block in use is an item, or was one that a reader may still see.
fn items(call: &Call<'_>) -> Vec<(String, String)> {
    let number = |(number, class): (usize, ClassInfo)| {
        (format!("items:{number}:number"), class.used.to_string())
    };
    classes(call).into_iter().filter(|(_, class)| class.used > 0).map(number).collect()
}

fn latencies(call: &Call<'_>) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for op in Op::ALL {
        let histogram = call.turn.server.stats.histogram(Way::Memcached, op);
        if histogram.count() == 0 {
            continue;
        }
        all.push((format!("{}_count", op.name()), histogram.count().to_string()));
        for (name, share) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
            let ns = histogram.percentile_ns(share).to_string();
            all.push((format!("{}_{name}_ns", op.name()), ns));
        }
    }
    all
}

/// Answers `stats` in text.
pub(super) fn text(call: &mut Call<'_>, what: &[u8]) {
    if what == b"reset" {
        call.turn.server.reset_counts();
        return call.line(b"RESET");
    }
    let Some(entries) = entries(call, what) else { return call.line(b"ERROR") };
    for (name, value) in entries {
        call.line(format!("STAT {name} {value}").as_bytes());
    }
    call.line(b"END");
}
