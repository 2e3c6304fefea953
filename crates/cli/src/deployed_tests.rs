//! The words that units, the compose file and the documents give to this command are ones that it
//! takes: who renames an option renames it there, too.

use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser};

use crate::Cli;

/// The commands whose lines in documents are looked at.
const COMMANDS: [&str; 3] = ["remora store serve ", "remora store cluster ", "remora nic "];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What clap objects to in a command line, if it does.
fn objection(words: &str) -> Option<String> {
    Cli::try_parse_from(words.split_whitespace()).err().map(|error| error.to_string())
}

fn judge(from: &str, words: &str) {
    if let Some(objection) = objection(words) {
        panic!("{from}: {words}\n{objection}");
    }
}

/// The command lines in a document, each on a line of its own, without what is the shell's.
fn commands(text: &str) -> Vec<String> {
    let lines = text.replace("\\\n", " ");
    let lines = lines.lines().map(|line| line.trim().trim_start_matches("target/release/"));
    let ours = lines.filter(|line| COMMANDS.iter().any(|command| line.starts_with(command)));
    let cut = |line: &str| {
        let end = [" #", " &", " |", " …"].iter().filter_map(|mark| line.find(mark)).min();
        line[..end.unwrap_or(line.len())].replace('"', "")
    };
    ours.map(cut).collect()
}

/// The value of each line `NAME=value` of a file.
fn values<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let value = |line: &'t str| line.strip_prefix(name)?.strip_prefix('=');
    text.lines().filter_map(value).collect()
}

/// The lists of words under `command:` in a compose file, as lines.
fn composed(text: &str) -> Vec<String> {
    let mut lines = text.lines().map(str::trim);
    let mut found = Vec::new();
    while lines.any(|line| line == "command:") {
        let words = lines.by_ref().map_while(|line| line.strip_prefix("- "));
        found.push(words.collect::<Vec<_>>().join(" "));
    }
    found
}

#[test]
fn words_that_are_none_of_ours_are_found_out() {
    assert_eq!(objection("remora store serve --cluster orders --redis"), None);
    let said = objection("remora store serve --clutser orders").unwrap();
    assert!(said.contains("'--clutser'"), "{said}");
    assert!(objection("remora store serve --nodes many").is_some());
}

#[test]
fn units_give_words_that_are_ours() {
    let unit = read("scripts/remora-store@.service");
    let given = values(&read("docs/cluster.md"), "REMORA_STORE_WORDS").concat();
    assert!(given.contains("--cluster"), "{given}");
    let cards = ["scripts/remora-nic.service", "scripts/remora-nic-user.service"];
    for path in ["scripts/remora-store@.service"].into_iter().chain(cards) {
        let started = values(&read(path), "ExecStart").concat();
        let words = started.replace("/usr/bin/remora", "remora");
        assert!(words.starts_with("remora "), "{path}: {words}");
        judge(path, &words.replace("$REMORA_STORE_WORDS", &given));
    }
    let directory = values(&unit, "StateDirectory").concat().replace("%i", "orders");
    judge("a node with a directory", &format!("remora store serve {given} --dir {directory}"));
}

#[cfg(feature = "cluster")]
#[test]
fn a_node_that_is_to_end_has_time_to() {
    let seconds = |path: &str, name: &str| {
        let text = read(path);
        let at = text.find(name).unwrap_or_else(|| panic!("{path} does not say {name}"));
        let digits: String =
            text[at + name.len()..].chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u64>().unwrap()
    };
    let least = crate::store::cluster::node::HAND_OVER.as_secs();
    assert!(seconds("scripts/remora-store@.service", "TimeoutStopSec=") > least);
    assert!(seconds("scripts/cluster/compose.yaml", "stop_grace_period: ") > least);
}

#[test]
fn secrets_have_the_names_that_the_command_knows() {
    let command = Cli::command();
    let store = command.find_subcommand("store").unwrap();
    let help = store.find_subcommand("serve").unwrap().clone().render_long_help().to_string();
    for path in ["scripts/remora-store@.service", "scripts/cluster/compose.yaml"] {
        let text = read(path);
        let words = text.split(|letter: char| !(letter.is_ascii_uppercase() || letter == '_'));
        let mut names = words.filter(|word| word.starts_with("REMORA_")).collect::<Vec<_>>();
        // (The words stand there themselves, and the card's is no secret.)
        names.retain(|name| !["REMORA_STORE_WORDS", "REMORA_NIC"].contains(name));
        assert!(names.contains(&"REMORA_STORE_PASSWORD"), "{path}: {names:?}");
        names.iter().for_each(|name| assert!(help.contains(name), "{path}: {name}"));
    }
}

#[test]
fn the_compose_file_gives_words_that_are_ours() {
    let path = "scripts/cluster/compose.yaml";
    let lists = composed(&read(path));
    let ours: Vec<_> = lists.iter().filter(|words| words.starts_with("remora ")).collect();
    let [words] = ours[..] else { panic!("{path}: {lists:?}") };
    assert!(words.contains("--cluster="), "{words}");
    judge(path, words);
}

#[test]
fn documents_give_words_that_are_ours() {
    let documents = std::fs::read_dir(root().join("docs")).unwrap();
    let names = documents.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pages = names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}"));
    let mut judged = Vec::new();
    for path in pages.chain(["README.md".to_owned()]) {
        for words in commands(&read(&path)) {
            judge(&path, &words);
            judged.push(words);
        }
    }
    for command in COMMANDS {
        assert!(judged.iter().any(|words| words.starts_with(command)), "{command}: {judged:?}");
    }
}
