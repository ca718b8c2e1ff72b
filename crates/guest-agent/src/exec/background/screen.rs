//! The screen of a terminal that outlives its clients.

use std::num::NonZeroU16;
use std::sync::Arc;

use guest_protocol::TerminalSize;
use guest_protocol::output::{Held, Room};
use vt100::Parser;

/// Largest screen that is remembered, in columns and rows; of a larger one the upper left part is.
const COLS_MAX: u16 = 512;
const ROWS_MAX: u16 = 256;
/// Maximum number of lines above the screen that are remembered.
const SCROLLBACK_ROWS: usize = 500;
/// Size of one character of the screen, in bytes.
const CELL_BYTES: usize = 32;
/// Screens of a terminal: the ordinary one, and that of full-screen programs.
const SCREENS: usize = 2;
/// Switches to the screen of full-screen programs.
const ALTERNATE: &str = "\x1b[?1049h";

/// Screen of a terminal, with the lines above it.
pub(super) struct Screen {
    parser: Parser,
    held: Held,
}

impl std::fmt::Debug for Screen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Screen").field("size", &self.parser.screen().size()).finish_non_exhaustive()
    }
}

fn clamped(size: TerminalSize) -> (NonZeroU16, NonZeroU16) {
    (within(size.rows, ROWS_MAX), within(size.cols, COLS_MAX))
}

fn within(value: u16, max: u16) -> NonZeroU16 {
    NonZeroU16::new(value.min(max)).unwrap_or(NonZeroU16::MIN)
}

impl Screen {
    /// Makes an empty screen; `None` if there is no room for one.
    pub(super) fn new(size: TerminalSize, room: &Arc<Room>) -> Option<Screen> {
        let (rows, cols) = clamped(size);
        let mut held = room.nothing();
        held.resize_to(bytes(rows, cols)).then(|| Screen { parser: Parser::new(rows, cols, SCROLLBACK_ROWS), held })
    }

    /// Shows output.
    pub(super) fn show(&mut self, output: &[u8]) {
        self.parser.process(output);
    }

    /// Takes another size.
    pub(super) fn resize(&mut self, size: TerminalSize) {
        let (rows, cols) = clamped(size);
        // A screen that does not fit keeps its size; its programs redraw what they show.
        if self.held.resize_to(bytes(rows, cols)) {
            self.parser.set_size(rows, cols);
        }
    }

    /// Returns bytes that make another terminal of the same size show the same, with the lines above.
    pub(super) fn drawn(&mut self) -> Vec<u8> {
        let mut drawn = Vec::new();
        let (rows, cols) = self.parser.screen().size();
        let screen = self.parser.screen_mut();
        if screen.alternate_screen() {
            drawn.extend_from_slice(ALTERNATE.as_bytes());
        } else {
            let above = screen.scrollback_len();
            let mut shown = 0;
            while shown < above {
                screen.set_scrollback(above - shown);
                let count = usize::from(rows.get()).min(above - shown);
                for line in screen.rows_formatted(0, cols.get()).take(count) {
                    drawn.extend_from_slice(line.as_bytes());
                    drawn.extend_from_slice(b"\x1b[m\r\n");
                }
                shown += count;
            }
            screen.set_scrollback(0);
            if above > 0 {
                // So that the last of these lines leave the screen before it is cleared.
                drawn.extend(std::iter::repeat_n(&b"\r\n"[..], usize::from(rows.get())).flatten());
            }
        }
        drawn.extend_from_slice(screen.state_formatted().as_bytes());
        drawn
    }
}

fn bytes(rows: NonZeroU16, cols: NonZeroU16) -> usize {
    usize::from(cols.get()) * CELL_BYTES * (SCREENS * usize::from(rows.get()) + SCROLLBACK_ROWS)
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    const SIZE: TerminalSize = TerminalSize { cols: 20, rows: 5 };

    fn screen() -> Screen {
        Screen::new(SIZE, &Room::of_bytes(1 << 24)).unwrap()
    }

    fn shown(screen: &Screen) -> String {
        screen.parser.screen().contents()
    }

    #[test]
    fn another_terminal_shows_the_same_with_the_lines_above() {
        let mut first = screen();
        (0..12).for_each(|n| first.show(format!("\x1b[3{}mline {n}\x1b[m\r\n", n % 8).as_bytes()));
        first.show(b"\x1b[2;3Hhere\x1b[?1h\x1b[?2004h");
        let mut second = screen();
        second.show(&first.drawn());
        assert_eq!(shown(&first), shown(&second));
        let (a, b) = (first.parser.screen(), second.parser.screen());
        assert_eq!(a.cursor_position(), b.cursor_position());
        assert_eq!((b.application_cursor(), b.bracketed_paste()), (true, true));
        second.parser.screen_mut().set_scrollback(13);
        assert!(shown(&second).starts_with("line 0\nline 1\n"), "{}", shown(&second));
    }

    #[test]
    fn a_full_screen_program_is_on_a_screen_of_its_own() {
        let mut first = screen();
        first.show(b"shell$ vi\r\n\x1b[?1049h\x1b[H~ a file");
        let mut second = screen();
        second.show(&first.drawn());
        assert_eq!(shown(&second), "~ a file");
        assert!(second.parser.screen().alternate_screen());
    }

    #[test]
    fn screens_are_bounded_in_size_and_in_number() {
        let room = Room::of_bytes(64 << 20);
        let huge = TerminalSize { cols: u16::MAX, rows: u16::MAX };
        let screens: Vec<Screen> = std::iter::from_fn(|| Screen::new(huge, &room)).collect();
        assert_eq!(screens.len(), (64 << 20) / (512 * 32 * (2 * 256 + 500)));
        let mut small = Screen::new(TerminalSize { cols: 1, rows: 1 }, &room).unwrap();
        small.resize(huge);
        assert_eq!(small.parser.screen().size().1.get(), 1, "there is no room for more");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        /// A program of the box writes what it likes: the agent must outlive it.
        #[test]
        fn no_output_ends_the_agent(
            pieces in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..40),
                    "[\\x1b\\x9b\\x90\\[\\]();?><=!0-9:;A-Za-z@`\\r\\n\\t\\x08\\x0e\\x0f\u{4e2d}e\u{301}]{0,60}"
                        .prop_map(String::into_bytes),
                    "(\\x1b\\[[?>]?[0-9]{0,5}(;[0-9]{0,5}){0,4}[A-Za-z@`]|[a-z\u{4e2d}]{0,30}){0,12}"
                        .prop_map(String::into_bytes),
                ],
                0..12
            ),
            sizes in prop::collection::vec((1_u16..300, 1_u16..600), 1..12),
        ) {
            let mut screen = screen();
            for (piece, (rows, cols)) in pieces.iter().zip(sizes.iter().cycle()) {
                screen.show(piece);
                screen.drawn();
                screen.resize(TerminalSize { cols: *cols, rows: *rows });
                screen.drawn();
            }
        }
    }
}
