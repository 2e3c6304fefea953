//! `remora demo`: what Remora is for, from end to end, on one machine.
//!
//! A memory node in one process serves a real file; this process READs and WRITEs it one-sided,
//! compares every byte, measures, and does the same over TCP with a third process. Then a catalogue
//! of this machine's files in the memory of a fourth process is looked up in three ways. Finally, a
//! key-value store has a row for each of many files, which is read in five ways; it selects rows,
//! is killed, and has all of them again.
//!
//! - [`data`]: the file. [`roce`]: moves it one-sided. [`tcp`]: moves it over TCP.
//! - [`catalogue`]: the look-ups. [`store`]: the key-value store; [`served`] is its process.
//! - [`figures`]: the measurements.
//!
//! The demo needs neither kernels that are loaded at run time nor the simulator, so `remora-demo`,
//! a program of its own, is there long before the command `remora` is.
#![warn(missing_debug_implementations)]

mod catalogue;
mod data;
mod figures;
mod roce;
mod served;
mod store;
mod tcp;

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use remora::Device;
use remora::connection::token::Token;
use remora_command::node::address::{NodeAddress, RegionAddress};
use remora_command::size::size_in;
use serde::Deserialize;
use serde_json::json;

use catalogue::Catalogue;
use data::DataFile;
use figures::{Bandwidth, Figures, Latency, ROUNDS};
use remora_command::child::Helper;
use remora_command::output;
use served::StoreServer;
use tcp::TcpServer;

/// `remora demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora demo                         64 MiB of this machine's own files
  remora demo --size 256M             more of them
  remora demo --file video.mp4        a file of yours")]
pub struct Demo {
    /// Serve this file instead of one that is made from this machine's own files
    #[arg(long, value_name = "FILE", conflicts_with = "size")]
    file: Option<PathBuf>,
    /// How much of this machine's own files to join; K, M, G are powers of 1024
    #[arg(long, value_name = "BYTES", default_value = "64M",
          value_parser = size_in(1..=data::BYTES_MAX))]
    size: u64,
    /// Print one line of JSON instead
    #[arg(long)]
    json: bool,
}

/// The other ends of the demo, each a process of the same program.
#[derive(Debug, Subcommand)]
pub enum Part {
    /// The other end of the demo's TCP copy
    #[command(hide = true)]
    DemoTcp(TcpServer),
    /// The demo's store
    #[command(hide = true)]
    DemoStore(StoreServer),
}

impl Part {
    /// Serves until it is killed, or until its standard input ends.
    ///
    /// # Errors
    /// It cannot serve.
    pub fn run(self) -> Result<()> {
        match self {
            Part::DemoTcp(server) => server.run(),
            Part::DemoStore(server) => server.run(),
        }
    }
}

/// What `remora node --json` prints when it serves.
#[derive(Debug, Deserialize)]
struct NodeReady {
    node: String,
    token: Option<String>,
}

/// What `remora demo-tcp` prints when it serves.
#[derive(Debug, Deserialize)]
struct TcpReady {
    address: SocketAddr,
}

impl Demo {
    /// Shows it.
    ///
    /// # Errors
    /// A process cannot be started, or a byte is wrong.
    pub fn run(self) -> Result<()> {
        let began = Instant::now();
        self.say(
            "Remora: memory of another process, over RoCE v2, without RDMA hardware or root.\n",
        );

        let data = match &self.file {
            Some(path) => DataFile::given(path)?,
            None => DataFile::gather(self.size)?,
        };
        let file = File::open(&data.path).context("cannot read the file to serve")?;
        let size = output::bytes(data.bytes);
        self.say(&format!("1. A real file of {size}: {}.", data.story));

        let roce = self.move_by_roce(&data, &file)?;
        let (peer, ready) = start_tcp(&data)?;
        let tcp = tcp::run(ready.address, &file, data.bytes)?;
        self.say(&format!(
            "5. The same over plain TCP, with process {} at the other end.\n",
            peer.id()
        ));
        drop(peer);

        let catalogue = Catalogue::load()?;
        let lookups = catalogue.look_up()?;
        self.say(&format!(
            "6. A catalogue of {} of this machine's files, loaded into the memory of process {} by \
             WRITEs.\n   Each was looked up in three ways: all bytes are right, each time.\n",
            output::grouped(catalogue.files() as u64),
            catalogue.peer_id()
        ));
        let listed = catalogue.listed();
        drop(catalogue);
        let store = store::run(7, |words| self.say(words))?;

        if self.json {
            return output::json_line(&json!({
                "bytes": data.bytes, "source": data.story,
                "crc32": format!("{:08x}", data.crc32),
                "verified": true, "seconds": began.elapsed().as_secs_f64(),
                "roce": roce, "tcp": tcp, "lookups": lookups,
                "store": store,
            }));
        }
        show(&size, &roce, &tcp);
        catalogue::show(&lookups, listed);
        store::show(&store);
        println!("Verified every byte, in {:.1} s. {WHAT_NEXT}", began.elapsed().as_secs_f64());
        Ok(())
    }

    /// Starts a node that serves the file, READs and WRITEs the file, and checks every byte.
    fn move_by_roce(&self, data: &DataFile, file: &File) -> Result<Figures> {
        let size = output::bytes(data.bytes);
        let (node, ready) = start_node(data)?;
        let address: NodeAddress = ready.node.parse()?;
        let token = ready.token.map(|token| token.parse::<Token>()).transpose()?;
        let device = Device::open()?;
        let ours = device.info().address;
        self.say(&format!(
            "2. A memory node, process {}, has a card at {address}. It serves the file, and {size} \
             of memory.",
            node.id()
        ));

        let region = |name: &str| RegionAddress { node: address, name: name.into() };
        let (roce, crc32) = roce::run(&device, &region("data"), &region("scratch"), token, file)?;
        ensure!(
            crc32 == data.crc32,
            "the checksums differ: {crc32:08x} arrived, {:08x} was sent",
            data.crc32
        );
        self.say(&format!(
            "3. This process, {}, with a card at {ours}, READ the file from it {ROUNDS} times.\n   \
             All {} bytes are right, each time: compared one by one; CRC-32 {crc32:08x}.\n\
             4. It WROTE them to the node's memory and READ them back: all right again.",
            process::id(),
            output::grouped(data.bytes)
        ));
        Ok(roce)
    }

    fn say(&self, words: &str) {
        if !self.json {
            println!("{words}");
        }
    }
}

const WHAT_NEXT: &str = "\
The node's program slept meanwhile: its card alone answered.
Latencies are round trips. In the first table this end polls; at the other, the card's thread looks
on for 0.1 ms behind each packet, and TCP's program sleeps until something comes. In the second,
both ends poll. A kernel follows pointers on the node's card, in one round trip; READs take one for
each pointer; an RPC needs the node's program. In the third, this end polls. A chain is work
requests that look the row up: it needs no code of the store's, and its client no access to memory.

Try next, with your own file in one terminal,
  remora node --region data=FILE --region scratch=64M,rw
and with the address that it prints in another:
  remora mem ls NODE
  remora mem read NODE/data --out COPY
  remora stats NODE --watch
  remora store serve --redis --memcached             the store, for clients that you have
  remora bench kernels                               kernels, measured: a page with plots
  REMORA_PCAP=packets.pcapng remora mem ls NODE      for Wireshark";

fn start_node(data: &DataFile) -> Result<(Helper, NodeReady)> {
    let path = data.path.to_str().context("the file's name is not UTF-8")?;
    let regions = [format!("data={path},ro"), format!("scratch={},rw", data.bytes.max(8))];
    let [data, scratch] = regions.each_ref().map(String::as_str);
    let mut node =
        Helper::start(["node", "--json", "--until-eof", "--region", data, "--region", scratch])?;
    let line = node.line().context("the memory node did not start")?;
    let ready =
        serde_json::from_str(&line).context("cannot understand the memory node's first line")?;
    Ok((node, ready))
}

fn start_tcp(data: &DataFile) -> Result<(Helper, TcpReady)> {
    let mut peer = Helper::start(["demo-tcp".as_ref(), "--file".as_ref(), data.path.as_os_str()])?;
    let line = peer.line().context("the TCP copy did not start")?;
    let ready =
        serde_json::from_str(&line).context("cannot understand the TCP copy's first line")?;
    Ok((peer, ready))
}

fn show(size: &str, roce: &Figures, tcp: &Figures) {
    let mut table = output::table(["", "Remora, RoCE v2", "plain TCP", "Remora is"]);
    let latency = |name: &str, ours: &Latency, theirs: &Latency| {
        let cell = |l: &Latency| format!("{:.1} µs (p99 {:.1})", l.median_us, l.p99_us);
        let ratio = theirs.median_us / ours.median_us;
        [name.to_owned(), cell(ours), cell(theirs), compare(ratio)]
    };
    let bandwidth = |name: String, ours: &Bandwidth, theirs: &Bandwidth| {
        let cell = |b: &Bandwidth| format!("{:.2} GB/s", b.median_gb_s);
        let ratio = ours.median_gb_s / theirs.median_gb_s;
        [name, cell(ours), cell(theirs), compare(ratio)]
    };
    table.add_row(latency("8-byte READ (TCP: ask and answer)", &roce.read_8b, &tcp.read_8b));
    table.add_row(latency("8-byte WRITE (TCP: send and echo)", &roce.write_8b, &tcp.write_8b));
    table.add_row(bandwidth(format!("READ of {size}"), &roce.read, &tcp.read));
    table.add_row(bandwidth(format!("WRITE of {size}"), &roce.write, &tcp.write));
    output::align_right(&mut table, 1..4);
    println!("{table}");
}

/// A ratio in words; above one, Remora is faster.
fn compare(ratio: f64) -> String {
    if ratio >= 1.0 {
        format!("{ratio:.1} × faster")
    } else {
        format!("{:.1} × slower", 1.0 / ratio)
    }
}
