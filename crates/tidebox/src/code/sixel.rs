//! Sixel graphics: six rows of pixels in a line of text, a letter for each column and color.
//!
//! The format is that of [DEC's terminals](https://vt100.net/docs/vt3xx-gp/chapter14.html).

use std::collections::HashMap;
use std::fmt::Write as _;

use color_quant::NeuQuant;

/// Most pixels of an image: code chooses its size, and a terminal keeps every pixel.
const PIXELS_MAX: usize = 4 << 20;
/// Registers for colors that terminals have.
const COLORS_MAX: usize = 256;
/// Rows of a band.
const BAND_ROWS: usize = 6;
/// Share of the pixels from which the colors are chosen: a third.
const SAMPLE: i32 = 3;
/// Opacity from which a pixel is painted.
const OPAQUE: u8 = 128;

/// Colors, and for each pixel the number of its color; `None` where nothing is painted.
type Colored = (Vec<[u8; 3]>, Vec<Option<u8>>);

/// Pixels of an image, each with the number of its color; `None` where nothing is painted.
struct Indexed {
    width: usize,
    pixels: Vec<Option<u8>>,
    palette: Vec<[u8; 3]>,
}

/// Returns the sequence that shows a PNG; `None` if it cannot be decoded, or is too large.
pub fn sequence(png: &[u8]) -> Option<String> {
    let image = indexed(png)?;
    let height = image.pixels.len() / image.width;
    let mut text = format!("\x1bP0;1q\"1;1;{};{height}", image.width);
    for (number, [red, green, blue]) in image.palette.iter().enumerate() {
        let [red, green, blue] = [red, green, blue].map(|share| u32::from(*share) * 100 / 255);
        let _ = write!(text, "#{number};2;{red};{green};{blue}");
    }
    for band in image.pixels.chunks(BAND_ROWS * image.width) {
        write_band(&mut text, band, image.width);
        text.push('-');
    }
    text.push_str("\x1b\\");
    Some(text)
}

/// Decodes a PNG, and chooses its colors.
fn indexed(png: &[u8]) -> Option<Indexed> {
    let mut decoder = png::Decoder::new(std::io::Cursor::new(png));
    decoder.set_transformations(png::Transformations::normalize_to_color8() | png::Transformations::ALPHA);
    let mut reader = decoder.read_info().ok()?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    let pixels = width.checked_mul(height).filter(|pixels| (1..=PIXELS_MAX).contains(pixels))?;
    let mut bytes = vec![0; reader.output_buffer_size()?];
    reader.next_frame(&mut bytes).ok()?;
    let rgba: Vec<[u8; 4]> = match bytes.len() / pixels {
        2 => bytes.chunks_exact(2).map(|gray| [gray[0], gray[0], gray[0], gray[1]]).collect(),
        4 => bytes.chunks_exact(4).map(|color| [color[0], color[1], color[2], color[3]]).collect(),
        _ => return None,
    };
    let (palette, pixels) = exact(&rgba).unwrap_or_else(|| nearest(&rgba));
    Some(Indexed { width, pixels, palette })
}

/// Returns the colors of an image that has no more of them than a terminal.
fn exact(rgba: &[[u8; 4]]) -> Option<Colored> {
    let mut numbers: HashMap<[u8; 3], u8> = HashMap::new();
    let mut palette = Vec::new();
    let mut pixels = Vec::with_capacity(rgba.len());
    for [red, green, blue, alpha] in rgba {
        if *alpha < OPAQUE {
            pixels.push(None);
            continue;
        }
        let color = [*red, *green, *blue];
        let number = match numbers.get(&color) {
            Some(number) => *number,
            None if palette.len() < COLORS_MAX => {
                let number = u8::try_from(palette.len()).ok()?;
                palette.push(color);
                numbers.insert(color, number);
                number
            }
            None => return None,
        };
        pixels.push(Some(number));
    }
    Some((palette, pixels))
}

/// Chooses the colors of an image that has more of them than a terminal.
fn nearest(rgba: &[[u8; 4]]) -> Colored {
    let chosen = NeuQuant::new(SAMPLE, COLORS_MAX, rgba.as_flattened());
    let palette = chosen.color_map_rgb().chunks_exact(3).map(|color| [color[0], color[1], color[2]]).collect();
    let number = |pixel: &[u8; 4]| (pixel[3] >= OPAQUE).then(|| chosen.index_of(pixel) as u8);
    (palette, rgba.iter().map(number).collect())
}

/// Writes up to six rows: for each color a line of letters, which a terminal paints over each other.
fn write_band(text: &mut String, band: &[Option<u8>], width: usize) {
    let mut lines: Vec<Option<Vec<u8>>> = vec![None; COLORS_MAX];
    for (index, number) in band.iter().enumerate() {
        if let Some(number) = number {
            let line = lines[usize::from(*number)].get_or_insert_with(|| vec![0; width]);
            line[index % width] |= 1 << (index / width);
        }
    }
    let mut separator = "";
    for (number, line) in lines.iter().enumerate().filter_map(|(number, line)| Some((number, line.as_ref()?))) {
        let _ = write!(text, "{separator}#{number}");
        for run in line.chunk_by(|left, right| left == right) {
            let letter = char::from(b'?' + run[0]);
            match run.len() {
                count @ ..4 => text.extend(std::iter::repeat_n(letter, count)),
                count => {
                    let _ = write!(text, "!{count}{letter}");
                }
            }
        }
        separator = "$";
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn png(width: u32, rgba: &[[u8; 4]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, width, u32::try_from(rgba.len()).unwrap() / width);
        encoder.set_color(png::ColorType::Rgba);
        encoder.write_header().unwrap().write_image_data(rgba.as_flattened()).unwrap();
        bytes
    }

    /// Paints a sequence as a terminal does.
    fn painted(sequence: &str) -> Vec<Vec<Option<[u32; 3]>>> {
        let body = sequence.strip_prefix("\x1bP0;1q\"1;1;").unwrap().strip_suffix("\x1b\\").unwrap();
        let size = body.split('#').next().unwrap();
        let (width, height) = size.split_once(';').unwrap();
        let (width, height): (usize, usize) = (width.parse().unwrap(), height.parse().unwrap());
        let mut screen = vec![vec![None; width]; height];
        let (mut colors, mut color, mut row, mut column) = (HashMap::new(), 0, 0, 0);
        let mut rest = &body[size.len()..];
        while let Some(letter) = rest.chars().next() {
            let words = rest[1..].find(|letter: char| !letter.is_ascii_digit() && letter != ';');
            let (numbers, after) = rest[1..].split_at(words.unwrap_or(rest.len() - 1));
            let numbers: Vec<u32> = numbers.split(';').filter_map(|number| number.parse().ok()).collect();
            rest = after;
            let (mut count, mut sixel) = (1, letter);
            match letter {
                '#' => {
                    color = numbers[0];
                    if let [_, 2, red, green, blue] = numbers[..] {
                        colors.insert(color, [red, green, blue]);
                    }
                    continue;
                }
                '$' => column = 0,
                '-' => (row, column) = (row + 6, 0),
                '!' => {
                    (count, sixel) = (numbers[0] as usize, rest.chars().next().unwrap());
                    rest = &rest[1..];
                }
                _ => {}
            }
            if matches!(letter, '$' | '-') {
                continue;
            }
            for _ in 0..count {
                for bit in (0..6).filter(|bit| (sixel as u8 - b'?') >> bit & 1 == 1) {
                    screen[row + bit][column] = Some(colors[&color]);
                }
                column += 1;
            }
        }
        screen
    }

    #[test]
    fn every_pixel_is_painted_where_it_belongs() {
        let (width, height) = (23, 14);
        let pixel = |index: usize| match index % 5 {
            0 => [255, 0, 0, 255],
            1 | 2 => [0, 255, 255, 200],
            3 => [0, 0, 0, 0],
            _ => [255, 255, 255, 255],
        };
        let rgba: Vec<[u8; 4]> = (0..width * height).map(|index| pixel(index / 3)).collect();
        let screen = painted(&sequence(&png(width as u32, &rgba)).unwrap());
        assert_eq!((screen.len(), screen[0].len()), (height, width));
        for (index, [red, green, blue, alpha]) in rgba.iter().enumerate() {
            let expected = (*alpha >= OPAQUE).then(|| [red, green, blue].map(|share| u32::from(*share) * 100 / 255));
            assert_eq!(screen[index / width][index % width], expected, "pixel {index}");
        }
    }

    #[test]
    fn an_image_of_many_colors_keeps_them_roughly() {
        let (width, height) = (64, 64);
        let rgba: Vec<[u8; 4]> =
            (0..width * height).map(|index| [(index % 64 * 4) as u8, (index / 64 * 4) as u8, 128, 255]).collect();
        let screen = painted(&sequence(&png(width as u32, &rgba)).unwrap());
        let far = rgba.iter().enumerate().filter(|(index, color)| {
            let seen = screen[index / width][index % width].unwrap();
            seen.iter().zip(&color[..3]).any(|(seen, share)| seen.abs_diff(u32::from(*share) * 100 / 255) > 15)
        });
        assert_eq!(far.count(), 0);
    }

    #[test]
    fn what_is_too_large_or_broken_is_not_shown() {
        assert_eq!(sequence(b"\x89PNG\r\n\x1a\nnothing"), None);
        let mut large = Vec::new();
        let writer = png::Encoder::new(&mut large, 1 << 16, 1 << 16).write_header();
        writer.unwrap().write_chunk(png::chunk::IDAT, &[]).unwrap();
        assert_eq!(sequence(&large), None);
        assert!(sequence(&png(1, &[[0; 4]])).is_some());
    }
}
