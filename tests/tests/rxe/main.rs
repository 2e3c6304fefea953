//! Traffic between Remora and the kernel's soft-RoCE, both ways.
//!
//! `./ci.sh rxe` runs it, with the virtual machine that `scripts/rxe-vm.sh` makes. By hand:
//! `REMORA_RXE_VM=$(scripts/rxe-vm.sh) cargo test -p remora-tests --test rxe -- WORDS...` runs the
//! cases whose names hold all the words. docs/testing.md says more.

mod cm;
mod connected;
mod datagram;
mod loss;
mod pairs;
mod programs;
mod refusals;

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use remora_tests::end::{Done, End, PATIENCE, Pair, Service, Status, Terms};
use remora_tests::machine::Machine;
use remora_tests::namespace::{self, HOST_V4, HOST_V6, MACHINE_V4, MACHINE_V6};
use remora_tests::native::Native;
use remora_tests::program::Program;
use remora_tests::wire::Wire;

/// How long the machine may take to boot.
const BOOT_PATIENCE: Duration = Duration::from_secs(120);
/// The name of the ends in the machine.
const KERNEL: &str = "the kernel";
/// The MTU of a link with the largest packets.
const JUMBO: u32 = 9000;
/// The MTU of an ordinary link.
const USUAL: u32 = 1500;

/// The state that all cases share.
struct World {
    wire: Wire,
    machine: Machine,
    image: PathBuf,
    /// The folder of Remora's libibverbs.so.1 and librdmacm.so.1, if there is one.
    library: Option<PathBuf>,
    link_mtu: u32,
}

/// Two ends and their surroundings; `a` is the one that begins.
struct Two<'w> {
    world: &'w World,
    a: Box<dyn End>,
    b: Box<dyn End>,
    /// The path MTU.
    mtu: u32,
}

/// What Remora's end is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over<'a> {
    /// The crate `remora`.
    Crate,
    /// The crate, on the card of a daemon.
    Daemon,
    /// The C program, on the libibverbs and librdmacm of a folder.
    Library(&'a Path),
}

impl Over<'_> {
    /// The links on which a case is run. The library and a daemon use the same card as the crate,
    /// with which every link is tested; only addresses are the library's own work. The slowest case
    /// only waits for the card's timers.
    fn links(self, name: &str, links: &'static [Link]) -> &'static [Link] {
        match self {
            Over::Crate => links,
            _ if name == "connecting with loss" => &[],
            Over::Library(_) if links.contains(&SIX) => &[PLAIN, SIX],
            Over::Library(_) | Over::Daemon => &[PLAIN],
        }
    }

    /// What the names of cases say of it.
    fn words(self) -> &'static str {
        match self {
            Over::Crate => "",
            Over::Daemon => ", by a daemon",
            Over::Library(_) => ", by libibverbs",
        }
    }
}

/// The link between the ends.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Link {
    link_mtu: u32,
    v6: bool,
}

const PLAIN: Link = Link { link_mtu: JUMBO, v6: false };
const SMALL: Link = Link { link_mtu: USUAL, v6: false };
const SIX: Link = Link { link_mtu: JUMBO, v6: true };

/// A case between two ends: a name, what it does, and where it is run.
type Case = (&'static str, fn(&mut Two<'_>), &'static [Link]);

const CASES: &[Case] = &[
    ("WRITEs of all sizes", connected::writes, &[PLAIN, SMALL, SIX]),
    ("READs of all sizes", connected::reads, &[PLAIN, SMALL, SIX]),
    ("SENDs of all sizes", connected::sends, &[PLAIN, SMALL, SIX]),
    ("WRITEs with immediate data", connected::writes_with_immediate, &[PLAIN]),
    ("atomics", connected::atomics, &[PLAIN, SIX]),
    ("a hundred in flight", connected::in_flight, &[PLAIN]),
    ("many queue pairs", connected::many_queue_pairs, &[PLAIN]),
    ("both ways at once", connected::both_ways, &[PLAIN, SMALL]),
    ("unreliable connection", connected::unreliable, &[PLAIN, SMALL]),
    ("datagrams", datagram::datagrams, &[PLAIN, SMALL, SIX]),
    ("datagrams with a wrong Q_Key", datagram::wrong_key, &[PLAIN]),
    ("wrong keys and bounds", refusals::wrong_keys, &[PLAIN]),
    ("too long for the receiver", refusals::too_long, &[PLAIN]),
    ("a late receiver", refusals::late_receiver, &[PLAIN]),
    ("no receiver", refusals::no_receiver, &[PLAIN]),
    ("a queue pair that is gone", refusals::gone, &[PLAIN]),
    ("a wire that is cut", refusals::cut, &[PLAIN]),
    ("loss of data", loss::of_data, &[PLAIN, SMALL]),
    ("loss of answers", loss::of_answers, &[PLAIN, SMALL]),
    ("loss both ways", loss::both_ways, &[PLAIN]),
    ("repeated packets", loss::repeated, &[PLAIN]),
    ("packets out of order", loss::out_of_order, &[PLAIN]),
    ("an atomic whose answer is lost", loss::of_an_atomic_answer, &[PLAIN]),
    ("a READ whose answers are lost", loss::of_read_answers, &[PLAIN]),
    ("the last packet lost", loss::of_the_last, &[PLAIN]),
    ("connecting", cm::connecting, &[PLAIN, SMALL, SIX]),
    ("refusing", cm::refusing, &[PLAIN]),
    ("a port without a listener", cm::no_listener, &[PLAIN]),
    ("parting, by the end that accepted", cm::parting_by_passive, &[PLAIN]),
    ("connecting again and again", cm::again_and_again, &[PLAIN]),
    ("connecting with loss", cm::with_loss, &[PLAIN]),
];

impl World {
    fn begin(image: PathBuf) -> std::io::Result<World> {
        namespace::furnish(JUMBO)?;
        let (wire, theirs) = Wire::new()?;
        let machine = Machine::boot(&image, theirs, JUMBO, BOOT_PATIENCE)?;
        // Neighbour discovery happens before a test has to wait for it: the kernel's verbs give up
        // after a second.
        machine.must(&format!("ping -c 1 -W 20 {HOST_V6} && ping -c 1 -W 20 {HOST_V4}"));
        let library = std::env::var_os("REMORA_VERBS_DIR").map(PathBuf::from);
        Ok(World { wire, machine, image, library, link_mtu: JUMBO })
    }

    fn set_link_mtu(&mut self, mtu: u32) {
        if self.link_mtu != mtu {
            namespace::set_mtu(mtu).unwrap();
            self.machine.must(&format!("ip link set eth0 mtu {mtu}"));
            self.link_mtu = mtu;
        }
    }

    fn kernel(&self, v6: bool) -> Box<dyn End> {
        let address = if v6 { IpAddr::from(MACHINE_V6) } else { MACHINE_V4.into() };
        Box::new(Program::in_machine(&self.machine, address))
    }

    /// Remora's end: over its library, or over the crate.
    fn remora(&self, v6: bool, over: Over<'_>) -> Box<dyn End> {
        let address = if v6 { IpAddr::from(HOST_V6) } else { HOST_V4.into() };
        match over {
            Over::Crate => Box::new(Native::open(address)),
            Over::Daemon => Box::new(Native::attach(address)),
            Over::Library(folder) => {
                let mut command = self.with_library(folder, address);
                command.arg(self.image.join("verbs_peer"));
                Box::new(Program::here(command, address))
            }
        }
    }

    /// A command that runs a verbs program over Remora's library.
    fn with_library(&self, folder: &Path, address: IpAddr) -> Command {
        let mut command = Command::new("env");
        command
            .arg(format!("LD_LIBRARY_PATH={}", folder.display()))
            .arg(format!("REMORA_ADDR={address}"));
        command
    }
}

impl Two<'_> {
    fn terms(&self) -> Terms {
        Terms::new(self.mtu)
    }

    /// Connected queue pairs, of `a` and of `b`.
    fn join(&mut self, service: Service, terms: &Terms) -> (Pair, Pair) {
        let (of_a, of_b) = (self.a.pair(service), self.b.pair(service));
        self.a.connect(&of_a, &of_b, terms);
        self.b.connect(&of_b, &of_a, terms);
        (of_a, of_b)
    }

    fn reliable(&mut self) -> (Pair, Pair) {
        let terms = self.terms();
        self.join(Service::Rc, &terms)
    }

    /// Sizes around the MTU, and a long one.
    fn sizes(&self) -> Vec<u64> {
        let mtu = u64::from(self.mtu);
        vec![0, 1, 4, 7, mtu - 1, mtu, mtu + 1, 2 * mtu, 2 * mtu + 3, 1 << 20]
    }
}

/// The next completion of an end.
fn next(end: &mut Box<dyn End>) -> Done {
    end.poll(PATIENCE).unwrap_or_else(|| panic!("{}: no completion", end.name()))
}

/// Takes the next completion, which must be this request's and a success.
fn well(end: &mut Box<dyn End>, wr_id: u64) -> Done {
    let done = next(end);
    assert_eq!((done.wr_id, done.status), (wr_id, Status::Success), "at {}", end.name());
    done
}

/// Runs the cases that the words select; returns how many were run, and the names of those that
/// failed.
fn run(world: &mut World, words: &[String]) -> (usize, Vec<String>) {
    let (mut count, mut failed) = (0, Vec::new());
    let times = times();
    let mut attempt = |name: String, act: &mut dyn FnMut()| {
        if !words.iter().all(|word| name.contains(word.as_str())) {
            return;
        }
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| (0..times).for_each(|_| act())));
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("{word:6} {:5.1} s  {name}", start.elapsed().as_secs_f64());
        count += 1;
        if outcome.is_err() {
            failed.push(name);
        }
    };
    let library = world.library.clone();
    let by_library = library.as_deref().map(Over::Library);
    for over in [Over::Crate, Over::Daemon].into_iter().chain(by_library) {
        let by = over.words();
        for link_mtu in [JUMBO, USUAL] {
            for (name, case, links) in CASES {
                let links = over.links(name, links).iter();
                for (link, kernel_begins) in links
                    .filter(|link| link.link_mtu == link_mtu)
                    .flat_map(|link| [(link, false), (link, true)])
                {
                    let way = if kernel_begins { "kernel to remora" } else { "remora to kernel" };
                    let ip = if link.v6 { "IPv6" } else { "IPv4" };
                    let name = format!("{name}, {way}, {ip}, link MTU {link_mtu}{by}");
                    attempt(name, &mut || {
                        world.set_link_mtu(link_mtu);
                        let (remora, kernel) = (world.remora(link.v6, over), world.kernel(link.v6));
                        let ends = if kernel_begins { (kernel, remora) } else { (remora, kernel) };
                        run_case(world, *case, ends, link_mtu);
                    });
                    world.wire.heal();
                }
            }
        }
    }
    for (name, case) in programs::CASES {
        attempt((*name).to_owned(), &mut || {
            world.set_link_mtu(JUMBO);
            case(world);
        });
    }
    if let Some(library) = library {
        for pair in pairs::PAIRS {
            for server_here in [false, true] {
                attempt(pairs::name(pair, server_here), &mut || {
                    world.set_link_mtu(JUMBO);
                    pairs::run(world, &library, pair, server_here);
                });
                world.wire.heal();
            }
        }
    }
    (count, failed)
}

/// How often each case is run.
fn times() -> u32 {
    std::env::var("RXE_TIMES").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// Runs one case between two ends, the first of which begins.
fn run_case(
    world: &World,
    case: fn(&mut Two<'_>),
    (a, b): (Box<dyn End>, Box<dyn End>),
    link_mtu: u32,
) {
    let mtu = if link_mtu == JUMBO { 4096 } else { 1024 };
    let mut two = Two { world, a, b, mtu };
    case(&mut two);
    let troubled = two.world.wire.heal();
    assert_eq!(troubled, 0, "a case leaves the wire whole");
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with('-')).collect();
    if std::env::args().any(|word| word == "--list") {
        return ExitCode::SUCCESS;
    }
    let Some(image) = std::env::var_os("REMORA_RXE_VM") else {
        println!("skipped: it needs a virtual machine; run: ./ci.sh rxe");
        return ExitCode::SUCCESS;
    };
    // Before any other thread exists.
    if let Err(error) = namespace::enter() {
        eprintln!("cannot make a network namespace: {error}");
        return ExitCode::FAILURE;
    }
    let start = Instant::now();
    let mut world = match World::begin(image.into()) {
        Ok(world) => world,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("the machine is up after {:.1} s", start.elapsed().as_secs_f64());
    let (count, failed) = run(&mut world, &words);
    println!(
        "{} of {count} cases passed, in {} s",
        count - failed.len(),
        start.elapsed().as_secs()
    );
    for name in &failed {
        println!("failed: {name}");
    }
    if !failed.is_empty() {
        println!("the machine's console:\n{}", world.machine.console());
    }
    if failed.is_empty() && count > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
