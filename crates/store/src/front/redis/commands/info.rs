//! `INFO`: what the server says of itself.

use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

use crate::front::redis::command::{Call, Done};
use crate::front::redis::commands::connection::REDIS_VERSION;
use crate::front::server_state::{DATABASES, ServerState};
use crate::stats::{Op, Way};

/// A section: its name, and what writes its lines. The flag says whether `INFO` alone shows it.
type Section = (&'static str, bool, fn(&ServerState, &mut String));

const SECTIONS: &[Section] = &[
    ("Server", true, about),
    ("Clients", true, clients),
    ("Memory", true, memory),
    ("Persistence", true, persistence),
    ("Stats", true, stats),
    ("Replication", true, replication),
    ("CPU", true, cpu),
    ("Commandstats", false, operations),
    ("Latencystats", false, latencies),
    ("Cluster", true, |server, text| {
        let is_one = server.keeper.cluster().is_some();
        line(text, format_args!("cluster_enabled:{}", u8::from(is_one)));
    }),
    ("Keyspace", true, keyspace),
];

/// `INFO [section …]`.
pub(crate) fn info(call: &mut Call<'_>) -> Done {
    let asked: Vec<_> = call.arguments.from(1).map(<[u8]>::to_ascii_lowercase).collect();
    let has = |word: &str| asked.iter().any(|name| name == word.as_bytes());
    let everything = has("all") || has("everything");
    let usual = asked.is_empty() || has("default");
    let mut text = String::new();
    for (name, is_usual, write) in SECTIONS {
        if !(everything || usual && *is_usual || has(&name.to_ascii_lowercase())) {
            continue;
        }
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        line(&mut text, format_args!("# {name}"));
        write(&call.turn.server, &mut text);
    }
    call.reply.verbatim(&text);
    Ok(())
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = text.write_fmt(line);
    text.push_str("\r\n");
}

fn about(server: &ServerState, text: &mut String) {
    let uptime = server.uptime().as_secs();
    line(text, format_args!("redis_version:{REDIS_VERSION}"));
    line(text, format_args!("remora_version:{}", env!("CARGO_PKG_VERSION")));
    let mode = if server.keeper.cluster().is_some() { "cluster" } else { "standalone" };
    line(text, format_args!("redis_mode:{mode}"));
    line(text, format_args!("os:{} {}", std::env::consts::OS, std::env::consts::ARCH));
    line(text, format_args!("arch_bits:{}", usize::BITS));
    line(text, format_args!("multiplexing_api:epoll"));
    line(text, format_args!("process_id:{}", std::process::id()));
    line(text, format_args!("run_id:{:040x}", server.run_id));
    line(text, format_args!("tcp_port:{}", server.ports.get().map_or(0, |ports| ports.0)));
    line(text, format_args!("uptime_in_seconds:{uptime}"));
    line(text, format_args!("uptime_in_days:{}", uptime / 86_400));
}

fn replication(server: &ServerState, text: &mut String) {
    let cluster = server.keeper.cluster().unwrap_or_default();
    if let Some(leader) = cluster.leader() {
        line(text, format_args!("role:slave"));
        if let Some(at) = leader.address {
            line(text, format_args!("master_host:{}", at.ip()));
            line(text, format_args!("master_port:{}", at.port()));
        }
        return;
    }
    let nodes = cluster.mine().map_or(0, |group| group.nodes.len());
    line(text, format_args!("role:master"));
    line(text, format_args!("connected_slaves:{}", nodes.saturating_sub(1)));
}

/// The process's own time and that of the children it has waited for, in the kernel and outside.
fn cpu(_: &ServerState, text: &mut String) {
    // Without it the section is empty.
    let Ok(all) = std::fs::read_to_string("/proc/self/stat") else { return };
    let second = rustix::param::clock_ticks_per_second() as f64;
    // The name of the program comes before, in brackets, and may have spaces.
    let behind = all.rsplit_once(')').map_or("", |(_, behind)| behind);
    let ticks = behind.split_whitespace().skip(11).map_while(|word| word.parse::<f64>().ok());
    let names = ["user", "sys", "user_children", "sys_children"];
    for (name, ticks) in names.into_iter().zip(ticks) {
        line(text, format_args!("used_cpu_{name}:{:.6}", ticks / second));
    }
}

fn clients(server: &ServerState, text: &mut String) {
    line(text, format_args!("connected_clients:{}", server.clients.count()));
    line(text, format_args!("maxclients:{}", server.settings.max_clients.load(Relaxed)));
    line(text, format_args!("blocked_clients:{}", server.held_back.load(Relaxed)));
}

fn memory(server: &ServerState, text: &mut String) {
    let (used, limit) = server.keyspace.bytes();
    line(text, format_args!("used_memory:{used}"));
    line(text, format_args!("used_memory_human:{}", human(used)));
    line(text, format_args!("used_memory_dataset:{used}"));
    line(text, format_args!("mem_clients_normal:{}", server.buffered.load(Relaxed)));
    line(text, format_args!("maxmemory:{limit}"));
    line(text, format_args!("maxmemory_human:{}", human(limit)));
}

/// Bytes as people read them.
fn human(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    for (shift, unit) in units {
        if bytes >> shift > 0 {
            return format!("{:.2}{unit}", bytes as f64 / (1u64 << shift) as f64);
        }
    }
    format!("{bytes}B")
}

fn persistence(server: &ServerState, text: &mut String) {
    line(text, format_args!("loading:0"));
    line(text, format_args!("rdb_last_save_time:{}", server.keeper.saved_s()));
    for (name, value) in server.keeper.entries() {
        line(text, format_args!("{name}:{value}"));
    }
}

fn stats(server: &ServerState, text: &mut String) {
    let sums = server.stats.sums();
    line(text, format_args!("total_connections_received:{}", sums.connections));
    line(text, format_args!("total_commands_processed:{}", sums.commands));
    line(text, format_args!("total_net_input_bytes:{}", sums.bytes_in));
    line(text, format_args!("total_net_output_bytes:{}", sums.bytes_out));
    line(text, format_args!("rejected_connections:{}", sums.connections_refused));
    line(text, format_args!("relayed_connections:{}", sums.connections_relayed));
    let gone = server.let_go();
    line(text, format_args!("expired_keys:{}", gone.expired));
    line(text, format_args!("evicted_keys:{}", gone.evicted));
    line(text, format_args!("keyspace_hits:{}", sums.hits));
    line(text, format_args!("keyspace_misses:{}", sums.misses));
    line(text, format_args!("one_sided_hits:{}", sums.one_sided_hits));
    line(text, format_args!("chain_lookups:{}", sums.chain_lookups));
    line(text, format_args!("long_calls:{}", sums.long_calls));
    line(text, format_args!("total_error_replies:{}", sums.errors));
    line(text, format_args!("acl_access_denied_auth:{}", sums.auth_refused));
    line(text, format_args!("protocol_errors:{}", sums.protocol_errors));
    line(text, format_args!("client_memory_refused:{}", sums.memory_refused));
    line(text, format_args!("client_idle_disconnections:{}", sums.connections_idle));
    line(text, format_args!("durability_waits:{}", sums.durability_waits));
    line(text, format_args!("slowlog_entries:{}", server.stats.slow_count()));
}

/// Shows what was counted of each operation, by each way in.
pub(super) fn each_operation(
    server: &ServerState,
    mut show: impl FnMut(String, crate::stats::Histogram),
) {
    for way in Way::ALL {
        for op in Op::ALL {
            let histogram = server.stats.histogram(way, op);
            if histogram.count() > 0 {
                show(format!("{}_{}", way.name(), op.name()), histogram);
            }
        }
    }
}

fn operations(server: &ServerState, text: &mut String) {
    each_operation(server, |name, histogram| {
        let (calls, us) = (histogram.count(), histogram.total_ns() / 1000);
        let each = us as f64 / calls as f64;
        line(text, format_args!("cmdstat_{name}:calls={calls},usec={us},usec_per_call={each:.2}"));
    });
}

fn latencies(server: &ServerState, text: &mut String) {
    each_operation(server, |name, histogram| {
        let [p50, p99, p999] =
            [0.5, 0.99, 0.999].map(|share| histogram.percentile_ns(share) as f64 / 1000.0);
        line(
            text,
            format_args!(
                "latency_percentiles_usec_{name}:p50={p50:.3},p99={p99:.3},p99.9={p999:.3}"
            ),
        );
    });
}

fn keyspace(server: &ServerState, text: &mut String) {
    for index in 0..DATABASES {
        let Some(ts) = server.used_database(index) else { continue };
        let keys = server.keyspace.count(ts);
        if keys > 0 {
            let expires = server.keyspace.expiring(ts);
            line(text, format_args!("db{index}:keys={keys},expires={expires},avg_ttl=0"));
        }
    }
}
