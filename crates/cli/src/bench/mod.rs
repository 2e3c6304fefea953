//! `remora bench`: Remora's figures beside a peer's, measured in one run.
//!
//! A benchmark is a list of [`row::Case`]s. [`row::measure`] runs Remora's way and the peer's in
//! turn, and makes a [`row::Row`] of each case; [`report`] prints the rows and writes them.
//!
//! - The benchmarks: [`transport`], [`verbs`], [`kernels`], [`chains`], all by UDP; [`local`] by
//!   shared memory; [`daemon`]: a card that processes share; [`loss`]: bad networks; [`scale`]:
//!   many connections; [`memory`], the paths between host and card; [`store`], the key-value store;
//!   [`cluster`]: the store on several nodes; [`worlds`]: networks of servers, simulated;
//!   [`peers`]: plain sockets, to compare with. [`cost`] has no peer: valgrind counts its
//!   instructions.
//! - What they start: [`program`]: programs, pinned to cores; [`c_program`]: those in C, which it
//!   compiles; [`event_server`]: one of them, whose ends sleep; [`daemon_process`]: a daemon.
//! - The output: [`figure`]: the same work by size; [`plot`]: a figure drawn; [`page`]: all in one
//!   file.

mod c_program;
mod chains;
mod cluster;
mod cost;
mod daemon;
mod daemon_process;
mod event_server;
mod figure;
mod kernels;
mod local;
mod loss;
mod memory;
pub(crate) mod page;
mod peers;
pub(crate) mod plot;
mod program;
mod report;
mod row;
mod scale;
mod store;
mod transport;
mod verbs;
mod worlds;

use std::env;
use std::os::unix::process::CommandExt;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use remora::fabric::FABRIC_VARIABLE;
use remora::offload::cpu;

use crate::store::PASSWORD_VARIABLE;

/// `remora bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora bench transport                          WRITEs beside UDP and TCP
  remora bench transport --quick                  a short test that the benchmark works
  remora bench local                              shared memory beside UDP, within this machine
  remora bench loss                               losses and many paths, live and simulated
  remora bench daemon                             one card for several processes
  remora bench scale                              10,000 and 100,000 queue pairs, and a storm
  remora bench kernels --html kernels.html        a page with plots
  remora bench chains --only fig10 --json rows.json
  remora bench memory --simulated                 a paper's figures, in the simulator
  remora bench store --only redis                 the store beside redis-server
  remora bench cluster --only failover            how soon another node serves
  remora bench worlds --full                      networks of 16 to 4,096 servers, simulated
  remora bench kernels --cpu v3                   as on a processor without AVX-512

Compare runs of one machine only, and leave it idle otherwise.")]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Latency, bandwidth and message rate of WRITEs, beside plain UDP and TCP on the same cores
    Transport(transport::Transport),
    /// Two processes of this machine by shared memory, beside the same by UDP
    Local(local::Local),
    /// Networks that lose and reorder: the lossy dialect beside the standard one, and a page
    Loss(loss::Loss),
    /// One card that processes share, beside cards of their own and other programs
    Daemon(daemon::DaemonBench),
    /// Thousands of queue pairs and connections at once, beside few, and what they take of memory
    Scale(scale::Scale),
    /// Verbs programs, unmodified, beside Remora's own measurements and plain UDP
    Verbs(verbs::Verbs),
    /// Kernels on the card: StRoM's experiments beside their baselines, and a page with plots
    Kernels(kernels::KernelBench),
    /// Chains on the card: RedN's experiments beside their baselines, and a page with plots
    Chains(chains::ChainBench),
    /// Paths between a host's memory and a card's, beside UCX's, and a page with plots
    Memory(memory::MemoryBench),
    /// The store in all its ways, beside Redis, memcached and DuckDB, and a page with plots
    Store(store::StoreBench),
    /// The store on several nodes, beside one node and Redis, and a page with plots
    Cluster(cluster::ClusterBench),
    /// Networks of up to 4,096 servers in the simulator, its speed, and a page with plots
    Worlds(worlds::Worlds),
    /// A hot path of two cards in one thread, for valgrind to count its instructions
    #[command(hide = true)]
    Cost(cost::Cost),
    #[command(hide = true)]
    Peer(peers::Peer),
    /// A program whose session outlives it, or the one that takes the session over
    #[command(hide = true)]
    Holder(daemon::holder::Holder),
}

impl Bench {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<()> {
        self.take_environment()?;
        match self.what {
            What::Transport(transport) => transport.run(),
            What::Local(local) => local.run(),
            What::Loss(loss) => loss.run(),
            What::Daemon(daemon) => daemon.run(),
            What::Scale(scale) => scale.run(),
            What::Verbs(verbs) => verbs.run(),
            What::Kernels(kernels) => kernels.run(),
            What::Chains(chains) => chains.run(),
            What::Memory(memory) => memory.run(),
            What::Store(store) => store.run(),
            What::Cluster(cluster) => cluster.run(),
            What::Worlds(worlds) => worlds.run(),
            What::Cost(cost) => cost.run(),
            What::Peer(peer) => peer.run(),
            What::Holder(holder) => holder.run(),
        }
    }

    /// If another level of processor is asked for than this process would use, or the bench judges
    /// what goes by the wire, the command takes this one's place with [`cpu::VARIABLE`] or
    /// [`FABRIC_VARIABLE`] set, for itself and for processes that it starts; and without the
    /// password of the user's own stores, of which the clients of a bench know nothing.
    fn take_environment(&self) -> Result<()> {
        let options = match &self.what {
            What::Transport(transport) => &transport.options,
            What::Local(local) => &local.options,
            What::Loss(loss) => &loss.options,
            What::Daemon(daemon) => &daemon.options,
            What::Scale(scale) => &scale.options,
            What::Verbs(verbs) => &verbs.options,
            What::Kernels(kernels) => &kernels.options,
            What::Chains(chains) => &chains.options,
            What::Memory(memory) => &memory.options,
            What::Store(store) => &store.options,
            What::Cluster(cluster) => &cluster.options,
            What::Worlds(worlds) => &worlds.options,
            What::Cost(_) | What::Peer(_) | What::Holder(_) => return Ok(()),
        };
        let level = options.cpu.filter(|asked| *asked != cpu::level());
        let both = matches!(self.what, What::Local(_) | What::Daemon(_));
        let wire = !both && env::var_os(FABRIC_VARIABLE).is_none();
        let password = env::var_os(PASSWORD_VARIABLE).is_some();
        if level.is_none() && !wire && !password {
            return Ok(());
        }
        let program = env::current_exe().context("cannot find this program's own file")?;
        let mut again = std::process::Command::new(program);
        again.args(env::args_os().skip(1)).env_remove(PASSWORD_VARIABLE);
        again.envs(level.map(|level| (cpu::VARIABLE, level.name())));
        again.envs(wire.then_some((FABRIC_VARIABLE, "udp")));
        Err(again.exec()).context("cannot start this program again")
    }
}
